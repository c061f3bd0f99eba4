"""What the daemon asks an API server for. Loads the official client."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from discover.watch.collection import Request, RequestKind, Sender
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workload_kinds import WorkloadKind
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.io.kube.client import Client, Timeout
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of

PAGE: Final = 500
"""Objects in each page of the first list."""

WRITE_TIMEOUT: Final = 10.0
"""Most seconds without a byte of the answer to a write."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Most seconds to connect, and without a byte of a list or of a watch. A server that works ends each watch within
    60 seconds, because the request asks for that (:data:`discover.watch.reflector.MIN_WATCH`).
    """

    connect: float = 5.0
    of_list: float = 30.0
    of_watch: float = 70.0


class Cluster:
    """One API server. Raises :class:`UsageError` if there are no credentials."""

    def __init__(self, access: Access, *, timeouts: Timeouts | None = None) -> None:
        self._access = access
        self._timeouts = timeouts or Timeouts()
        self._reads = self._client(keep_s=0.0)  # they are rare
        try:
            self.host = access.configuration().host
        except ApiError as error:
            if access.kubeconfig:
                raise UsageError(str(error)) from None
            self.host = "the cluster of this pod"  # the pod's credentials may be written a little later

    @property
    def namespace(self) -> str:
        """The namespace of the pod or of the kubeconfig, else ``default``. Raises :class:`ApiError`."""
        return self._access.namespace

    def pods(self, namespace: str, selector: Callable[[], str]) -> Followed:
        """Return the collection of a namespace's pods. ``selector`` returns their label selector. It is called for each
        request, and may raise :class:`ApiError`.
        """
        where = f"pods of namespace {namespace} at {self.host}"
        return self._followed(path_of("v1", "pods", namespace), where, lambda: {"labelSelector": selector()})

    def pod(self, namespace: str, name: str) -> Followed:
        """Return the collection that has only the pod ``name``, and is empty while there is no such pod."""
        where, only = f"pod {namespace}/{name} at {self.host}", {"fieldSelector": f"metadata.name={name}"}
        return self._followed(path_of("v1", "pods", namespace), where, lambda: only)

    def nodes(self, selector: str = "") -> Followed:
        """Return the collection of the nodes that match the label ``selector``; "" matches all."""
        return self._followed(path_of("v1", "nodes"), f"nodes at {self.host}", lambda: {"labelSelector": selector})

    def pod_now(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Read one pod. Raises :class:`ApiError`."""
        return self._read(path_of("v1", "pods", namespace, name))

    def job(self, kind: WorkloadKind, *, namespace: str, name: str) -> Mapping[str, Any]:
        """Read the object above the pods. Raises :class:`ApiError`."""
        return self._read(path_of(kind.api_version, kind.plural, namespace, name))

    def node_exists(self, name: str) -> bool:
        """Whether the node ``name`` exists. Raises :class:`ApiError` if the server does not answer that."""
        try:
            self._read(path_of("v1", "nodes", name=name))
        except ApiError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return False
        return True

    def sender(self) -> Sender:
        """Return a new sender with its own connection. It waits at most :data:`WRITE_TIMEOUT` seconds for the next byte
        of an answer.
        """
        read = min(self._timeouts.of_list, WRITE_TIMEOUT)
        return Sender(Client(self._access, timeout=Timeout(self._timeouts.connect, read)))

    def _followed(self, path: str, where: str, query: Callable[[], Mapping[str, str]]) -> Followed:
        return Followed(self._client(), path, query, watch_timeout=self._timeouts.of_watch, where=where)

    def _read(self, path: str) -> Mapping[str, Any]:
        return self._reads.request("GET", path)

    def _client(self, *, keep_s: float | None = None) -> Client:
        timeout = Timeout(self._timeouts.connect, self._timeouts.of_list)
        return Client(self._access, timeout=timeout, keep_s=keep_s)


class Followed:
    """A :class:`discover.watch.collection.Collection`: the objects at ``path`` that ``query`` selects."""

    def __init__(
        self, client: Client, path: str, query: Callable[[], Mapping[str, str]], *, watch_timeout: float, where: str
    ) -> None:
        self.where = where
        self._client = client
        self._path = path
        self._query = query
        self._watch_timeout = watch_timeout
        self.reload_credentials, self.interrupt, self.close = client.reload_credentials, client.interrupt, client.close

    def open(self, request: Request) -> Generator[bytes, None, None]:
        """Send ``request``; see :meth:`Collection.open`. It fails if no byte comes for the timeout of lists, or of
        watches.
        """
        watch = request.ask is RequestKind.WATCH
        query = {name: value for name, value in {**self._query(), **_query(request)}.items() if value}
        return self._client.stream(self._path, query=query, read=self._watch_timeout if watch else None, live=watch)


def _query(request: Request) -> dict[str, str]:
    match request.ask:
        case RequestKind.PAGED:
            return {"limit": str(PAGE), "continue": request.more}
        case RequestKind.RELIST if not request.more:
            return {"resourceVersion": request.version, "resourceVersionMatch": "NotOlderThan"}
        case RequestKind.UNPAGED | RequestKind.RELIST:
            return {"continue": request.more}
        case RequestKind.WATCH:
            return {
                "watch": "true",
                "resourceVersion": request.version,
                "allowWatchBookmarks": "true",
                "timeoutSeconds": str(request.ends or ""),
            }
