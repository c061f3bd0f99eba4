"""What the daemon asks an API server for. Loads the official client.

The daemon does not use the client's models, ``Watch`` and informers, because they lose versions, hang, or loop
(docs/kubernetes.md).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final
from urllib.parse import urlencode

from discover.kube.collection import Request, RequestKind
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workloads import WorkloadKind
from hvd_elastic_ext.io.kube.access import Access, Unreadable
from hvd_elastic_ext.io.kube.client import ClientCollection, ClientSender, Timeouts
from hvd_elastic_ext.io.kube.errors import NOT_FOUND, RequestFailed, object_path

PAGE: Final = 500
"""Objects in each page of the first list."""

WRITE_TIMEOUT: Final = 10.0
"""Most seconds without a byte of the answer to a write."""


class Cluster:
    """One API server. Raises :class:`UsageError` if there are no credentials."""

    def __init__(self, access: Access, *, timeouts: Timeouts | None = None) -> None:
        self._access = access
        self._timeouts = timeouts or Timeouts()
        try:
            self.host = access.configuration().host
        except Unreadable as error:
            if access.kubeconfig:
                raise UsageError(str(error)) from None
            self.host = "the cluster of this pod"  # the pod's credentials may be written a little later

    @property
    def namespace(self) -> str:
        """The namespace of the pod or of the kubeconfig, else ``default``. Raises :class:`Unreadable`."""
        return self._access.namespace

    def pods(self, namespace: str, selector: Callable[[], str]) -> Followed:
        """Return the collection of a namespace's pods. ``selector`` returns their label selector. It is called for each
        request, and may raise :class:`RequestFailed`.
        """
        where = f"pods of namespace {namespace} at {self.host}"
        return self._at(object_path("v1", namespace, "pods"), where, lambda: {"labelSelector": selector()})

    def pod(self, namespace: str, name: str) -> Followed:
        """Return the collection that has only the pod ``name``, and is empty while there is no such pod."""
        where = f"pod {namespace}/{name} at {self.host}"
        return self._at(object_path("v1", namespace, "pods"), where, lambda: {"fieldSelector": f"metadata.name={name}"})

    def nodes(self, selector: str = "") -> Followed:
        """Return the collection of the nodes that match the label ``selector``; "" matches all."""
        return self._at(object_path("v1", "", "nodes"), f"nodes at {self.host}", lambda: {"labelSelector": selector})

    def pod_now(self, namespace: str, name: str) -> Mapping[str, Any]:
        """Read one pod. Raises :class:`RequestFailed`."""
        return self._read(object_path("v1", namespace, "pods", name), f"pod {namespace}/{name} at {self.host}")

    def job(self, kind: WorkloadKind, *, namespace: str, name: str) -> Mapping[str, Any]:
        """Read the object above the pods. Raises :class:`RequestFailed`."""
        path = object_path(kind.api_version, namespace, kind.plural, name)
        return self._read(path, f"{kind.plural} {namespace}/{name} at {self.host}")

    def node_exists(self, name: str) -> bool:
        """Whether the node ``name`` exists. Raises :class:`RequestFailed` if the server does not answer that."""
        try:
            self._read(object_path("v1", "", "nodes", name), f"node {name} at {self.host}")
        except RequestFailed as error:
            if error.code != NOT_FOUND:
                raise
            return False
        return True

    def sender(self) -> ClientSender:
        """Return a new sender with its own connection. It waits at most :data:`WRITE_TIMEOUT` seconds for the next byte
        of an answer.
        """
        timeouts = Timeouts(connect=self._timeouts.connect, of_list=min(self._timeouts.of_list, WRITE_TIMEOUT))
        return ClientSender(self._access, timeouts=timeouts, where=self.host)

    def _at(self, path: str, where: str, query: Callable[[], Mapping[str, str]]) -> Followed:
        return Followed(self._access, path, query, timeouts=self._timeouts, where=where)

    def _read(self, path: str, where: str) -> Mapping[str, Any]:
        one = Followed(self._access, path, dict, timeouts=self._timeouts, where=where)
        try:
            return one.read_object("GET", path)
        finally:
            one.close()


class Followed(ClientCollection):
    """The objects that a reflector follows."""

    def open(self, request: Request) -> Generator[bytes, None, None]:
        """Send ``request``; see :meth:`Collection.open`. It fails after :attr:`Timeouts.of_list` or
        :attr:`Timeouts.of_watch` seconds without a byte.
        """
        watch = request.ask is RequestKind.WATCH
        query = {name: value for name, value in {**self._query(), **_query(request)}.items() if value}
        read = self._timeouts.of_watch if watch else self._timeouts.of_list
        return self._pieces(self._send("GET", f"{self._path}?{urlencode(query)}", read=read), whole=not watch)


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
