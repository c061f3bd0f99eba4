"""Reads and sets the number of a job's workers in a cluster. Loads the official client, for its credentials."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeVar

from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.io.kube.client import Client, Timeout
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of
from hvd_elastic_ext.launcher.sleep.replica_requests import (
    RELEASE,
    Pod,
    Seen,
    Workload,
    mark_patch,
    marks,
    request,
    scale_patch,
    seen,
    selector_of,
    suspended,
    workers_of,
)

# --- requests


TIMEOUT: Final = Timeout(3.0, 5.0)
"""Seconds for a connection, and without a byte of the answer: a launcher that ends waits for a running request."""
_REMEDIES: Final[Mapping[int, str]] = {HTTPStatus.UNAUTHORIZED: "its token is missing or has expired"}
_RIGHTS: Final = {RELEASE: "hvd-elastic manifest sleep gives the right"}
_RIGHTS_ELSE: Final = "docs/autoscale.md says which rights it needs"
T = TypeVar("T")


class Replicas:
    """The workers of one object. Each call reads credentials again: tokens last for an
    hour, and a job may sleep for days."""

    def __init__(self, access: Access, job: Workload, *, timeout: Timeout = TIMEOUT, option: str = RELEASE) -> None:
        names = f"{option} names what makes the workers, in the namespace of the launcher"
        rights = _RIGHTS.get(option, _RIGHTS_ELSE)
        remedies = {**_REMEDIES, HTTPStatus.FORBIDDEN: rights, HTTPStatus.NOT_FOUND: names}
        self._job = job
        self._client = functools.partial(Client, access, timeout=timeout, remedies=remedies)

    def look(self) -> Seen:
        """Read the present state. Raises :class:`ApiError`."""

        def act(client: Client) -> Seen:
            number = client.request("GET", self._number(client))
            query = {"labelSelector": selector_of(self._job, number)}
            return seen(self._job, number, client.request("GET", _pod_answered(client), query=query))

        return self._within(act)

    def tell(self, replicas: int, *, before: int | None) -> None:
        """Request this many workers; ``before``: the number before, noted if possible; None removes the note. Raises
        :class:`ApiError`; the cluster may have received the request nevertheless.
        """
        body = scale_patch(self._job, replicas, before)
        self._within(lambda client: client.request("PATCH", self._number(client), body))

    def resize(self, replicas: int, leaving: Sequence[str]) -> None:
        """Request this many workers. If they are fewer, those of the hosts ``leaving`` go, if the kind allows that
        choice. Raises :class:`ApiError`.
        """
        if self._job.kind.scaled_by:
            self._within(lambda client: self._request(client, replicas, leaving))
            return
        if self._job.kind.marked:
            seen = self.look()

            def mark(client: Client) -> None:
                for pod, cost in marks(self._job, seen, leaving):
                    self._mark(client, pod, cost)

            self._within(mark)
        self.tell(replicas, before=None)

    def asked_for(self) -> int | None:
        """The requested number of workers; None while the et-operator makes a change. Raises :class:`ApiError`."""

        def act(client: Client) -> int | None:
            number = client.request("GET", self._number(client))
            if not self._job.kind.scaled_by:
                return seen(self._job, number, {"items": []}).replicas
            names, under_way = workers_of(self._job, number)
            return None if under_way else len(names)

        return self._within(act)

    def _mark(self, client: Client, pod: str, cost: str | None) -> None:
        try:
            client.request("PATCH", _pod_answered(client, pod), mark_patch(cost))
        except ApiError as error:
            if error.reason is not Reason.NOT_FOUND:  # it has gone by itself
                raise

    def _request(self, client: Client, replicas: int, leaving: Sequence[str]) -> None:
        names, under_way = workers_of(self._job, client.request("GET", self._path(client)))
        if under_way:
            raise ApiError(Reason.CONFLICT, f"the et-operator is at {under_way}; the next change comes after it")
        found = request(self._job, names, replicas, leaving)
        if found is not None:
            plural, body = found
            client.request("POST", path_of(body["apiVersion"], plural, client.namespace), body)

    def suspend(self, replicas: int) -> None:
        """Suspend the whole job, the launcher included. Raises :class:`ApiError`."""
        body = suspended(self._job, replicas)
        self._within(lambda client: client.request("PATCH", self._path(client), body))

    def delete(self, pods: tuple[Pod, ...]) -> None:
        """Delete these pods, but no later pods of the same name. Raises :class:`ApiError`."""

        def act(client: Client) -> None:
            for pod in pods:
                options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": pod.uid}}
                try:
                    client.request("DELETE", _pod_answered(client, pod.name), options)
                except ApiError as error:
                    if error.reason not in (Reason.NOT_FOUND, Reason.CONFLICT):
                        raise

        self._within(act)

    def _path(self, client: Client, subresource: str = "") -> str:
        kind = self._job.kind
        return path_of(kind.api_version, kind.plural, client.namespace, self._job.name, subresource)

    def _number(self, client: Client) -> str:
        """Return the path at which the number is read and written."""
        return self._path(client, "scale" if self._job.kind.scale else "")

    def _within(self, act: Callable[[Client], T]) -> T:
        with self._client() as client:
            try:
                return act(client)
            except ValueError as error:  # what the cluster shows allows no such request
                raise ApiError(Reason.CONFLICT, str(error)) from None


def _pod_answered(client: Client, name: str = "") -> str:
    return path_of("v1", "pods", client.namespace, name)


def found(
    job: Workload, environ: Mapping[str, str], *, option: str = RELEASE, asked_by: str = "--sleep-releases"
) -> Replicas:
    """Use the cluster that ``$KUBECONFIG`` names, else the one of this machine. Raises :class:`UsageError`.

    ``option`` names the job, and ``asked_by`` needs the cluster: for error messages.
    """
    return Replicas(Access.found(None, environ, remedy=f"for {asked_by} let KUBECONFIG name one"), job, option=option)
