"""Reads and sets the number of a job's workers in a cluster. Loads the official client, for its credentials.

All calls may block, as long as ``timeout`` says: they are for threads, not for the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlencode

from hvd_elastic_ext.core.errors import Transient
from hvd_elastic_ext.io.kube.access import Access, Refused, Unanswered, Unreadable, ask
from hvd_elastic_ext.io.kube.pods import refusal
from hvd_elastic_ext.launcher.rules.suspend import workloads
from hvd_elastic_ext.launcher.rules.suspend.workloads import RELEASE, Pod, Seen, Workload

TIMEOUT: Final = (3.0, 5.0)
"""Seconds for a connection, and without a byte of the answer: a launcher that ends waits for a running request."""

_REMEDIES: Final[Mapping[int, str]] = {HTTPStatus.UNAUTHORIZED: "its token is missing or has expired"}
_RIGHTS: Final = {RELEASE: "hvd-elastic manifest sleep gives the right"}
_RIGHTS_ELSE: Final = "docs/autoscale.md says which rights it needs"

T = TypeVar("T")


class _Send(Protocol):
    def __call__(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]: ...


class RequestFailed(Transient):
    """A request to the cluster has failed; ``str()`` is the reason, in one line."""


class Replicas:
    """The workers of one object. For one thread at a time. Each call reads credentials again: tokens last for an
    hour, and a job may sleep for days."""

    def __init__(
        self, access: Access, job: Workload, *, timeout: tuple[float, float] = TIMEOUT, option: str = RELEASE
    ) -> None:
        self._access = access
        names = f"{option} names what makes the workers, in the namespace of the launcher"
        rights = _RIGHTS.get(option, _RIGHTS_ELSE)
        self._remedies = {**_REMEDIES, HTTPStatus.FORBIDDEN: rights, HTTPStatus.NOT_FOUND: names}
        self._job = job
        self._timeout = timeout

    def look(self) -> Seen:
        """Read the present state. Raises :class:`RequestFailed`."""

        def act(send: _Send, space: str) -> Seen:
            number = send("GET", self._job.number_path(space))
            query = urlencode({"labelSelector": workloads.selector_of(self._job, number)})
            return workloads.seen(self._job, number, send("GET", f"/api/v1/namespaces/{space}/pods?{query}"))

        return self._within(act)

    def tell(self, replicas: int, *, before: int | None) -> None:
        """Request so many workers; ``before``: the number before, noted if possible; None removes the note. Raises
        :class:`RequestFailed`; the cluster may have received the request nevertheless.
        """
        body = workloads.scale_patch(self._job, replicas, before)
        self._within(lambda send, space: send("PATCH", self._job.number_path(space), body))

    def resize(self, replicas: int, leaving: Sequence[str]) -> None:
        """Request so many workers. If they are fewer, those of the hosts ``leaving`` go, if the kind allows that
        choice. Raises :class:`RequestFailed`.
        """
        if self._job.kind.scaled_by:
            self._within(lambda send, space: self._request(send, space, replicas, leaving))
            return
        if self._job.kind.marked:
            for pod, cost in self._marks(leaving):
                self._mark(pod, cost)
        self.tell(replicas, before=None)

    def asked_for(self) -> int | None:
        """The requested number of workers; None while the et-operator makes a change. Raises :class:`RequestFailed`."""

        def act(send: _Send, space: str) -> int | None:
            number = send("GET", self._job.number_path(space))
            if not self._job.kind.scaled_by:
                return workloads.seen(self._job, number, {"items": []}).replicas
            names, under_way = workloads.workers_of(self._job, number)
            return None if under_way else len(names)

        return self._within(act)

    def _marks(self, leaving: Sequence[str]) -> list[tuple[str, str | None]]:
        seen = self.look()
        return self._within(lambda send, space: workloads.marks(self._job, seen, leaving))

    def _mark(self, pod: str, cost: str | None) -> None:
        def act(send: _Send, space: str) -> None:
            try:
                send("PATCH", f"/api/v1/namespaces/{space}/pods/{pod}", workloads.mark_patch(cost))
            except Refused as error:
                if error.code != HTTPStatus.NOT_FOUND:  # it has gone by itself
                    raise

        self._within(act)

    def _request(self, send: _Send, space: str, replicas: int, leaving: Sequence[str]) -> None:
        names, under_way = workloads.workers_of(self._job, send("GET", self._job.path(space)))
        if under_way:
            raise RequestFailed(f"the et-operator is at {under_way}; the next change comes after it")
        found = workloads.request(self._job, names, replicas, leaving)
        if found is not None:
            plural, body = found
            send("POST", self._job.all_path(space, plural), body)

    def suspend(self, replicas: int) -> None:
        """Suspend the whole job, the launcher included. Raises :class:`RequestFailed`."""
        body = workloads.suspended(self._job, replicas)
        self._within(lambda send, space: send("PATCH", self._job.path(space), body))

    def delete(self, pods: tuple[Pod, ...]) -> None:
        """Delete these pods, but no later pods of the same name. Raises :class:`RequestFailed`."""

        def act(send: _Send, space: str) -> None:
            for pod in pods:
                options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": pod.uid}}
                try:
                    send("DELETE", f"/api/v1/namespaces/{space}/pods/{pod.name}", options)
                except Refused as error:
                    if error.code not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                        raise

        self._within(act)

    def _within(self, act: Callable[[_Send, str], T]) -> T:
        try:
            configuration, space = self._access.configuration(), self._access.namespace

            def send(method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
                return ask(configuration, method, path, body, timeout=self._timeout)

            return act(send, space)
        except Refused as error:
            raise RequestFailed(refusal(error.code, error.body, self._remedies)) from None
        except Unanswered as error:
            raise RequestFailed(f"no answer from the API server: {error}") from None
        except (Unreadable, ValueError) as error:
            raise RequestFailed(str(error)) from None


def found(
    job: Workload, environ: Mapping[str, str], *, option: str = RELEASE, asked_by: str = "--sleep-releases"
) -> Replicas:
    """Use the cluster that ``$KUBECONFIG`` names, else the one of this machine. Raises :class:`UsageError`.

    ``option`` names the job, and ``asked_by`` needs the cluster: for error messages.
    """
    return Replicas(Access.found(None, environ, remedy=f"for {asked_by} let KUBECONFIG name one"), job, option=option)
