"""The server object for tests. It connects all parts, and changes the server from outside the API."""

from __future__ import annotations

import contextlib
import functools
import heapq
import json
import socket
import ssl
import tempfile
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support import marks
from tests.support.kube import handler, lifecycle, listing, patches, web
from tests.support.kube.access import NAMESPACE_ADMIN, Access
from tests.support.kube.clock import ServerClock, rfc3339, unix
from tests.support.kube.execs import Execs
from tests.support.kube.faults import Faults
from tests.support.kube.logs import Logs
from tests.support.kube.request_counts import Counts
from tests.support.kube.requests import Call
from tests.support.kube.resources import BY_KIND, Key, Resource, resource
from tests.support.kube.store import HISTORY, Backup, Record, Store
from tests.support.kube.tls import Authority, Pair
from tests.support.kube.verbs import Verbs
from tests.support.kube.watching import Watch

Body = dict[str, Any]


class KubeServer:
    """An API server on a port of 127.0.0.1. A context manager.

    Tests may use ``faults``, ``counts``, ``clock``, ``access``, ``execs``, ``logs`` and ``store``. ``token`` may do
    everything; kubectl sends it over TLS only.

    ``tls``: serve HTTPS, with a CA of its own in ``folder``. ``history``: events of each kind before the oldest are
    compacted. ``kubelet``: remove pods when the grace period of their deletion ends. Without it they wait for a
    deletion with grace 0, as in a cluster whose node is gone. ``patience``: seconds to wait for a version that does not
    exist yet. ``open_`` makes the socket to listen on, for example one of another network namespace.

    The store does not report its progress to the watch caches, like an etcd before 3.4.25. So a watch of a kind that
    does not change gets no bookmarks, and a list that must not be older than a write of another kind is refused (504).
    """

    def __init__(
        self,
        *,
        tls: bool = False,
        folder: Path | None = None,
        history: int = HISTORY,
        kubelet: bool = True,
        patience: float = 0.1,
        open_: web.Open = socket.socket,
    ) -> None:
        self.stopping = threading.Event()
        self.clock = ServerClock()
        self.store = Store(history=history)
        self.access = Access(self.store, self.clock)
        self.faults = Faults()
        self.counts = Counts()
        self.execs = Execs()
        self.logs = Logs(self.stopping)
        self.verbs = Verbs(self.store, self.clock, self.access, patience=patience)
        self._missing: set[str] = set()
        self.resetting = self.hanging = False
        self.context: ssl.SSLContext | None = None
        self._temporary = contextlib.ExitStack()
        self._folder = folder
        self.authority: Authority | None = None
        if tls:
            self.rotate_ca()
        self._lock = threading.Lock()
        self._watches: list[Watch] = []
        self._listener = web.Listener(functools.partial(handler.serve, server=self), self._connected, open_=open_)
        self._kubelet = _Kubelet(self) if kubelet else None
        self.clock.listen(self.store.wake)
        for name in ("default", "kube-system"):
            self.put("namespaces", {"metadata": {"name": name}, "status": {"phase": "Active"}})

    # Life

    def __enter__(self) -> KubeServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._listener.listen()
        if self._kubelet is not None:
            self._kubelet.start()

    def stop(self) -> None:
        """End all connections and threads. The server cannot be started again; to stop it for a while use
        :meth:`refuse`.
        """
        self.stopping.set()
        self.execs.stop()
        self.store.wake()
        self._listener.close()
        if self._kubelet is not None and self._kubelet.is_alive():
            self._kubelet.join()
        self._temporary.close()

    # Where it is

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def url(self) -> str:
        return f"{'https' if self.authority else 'http'}://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return self.access.admin

    @property
    def ca_file(self) -> Path | None:
        return None if self.authority is None else self.authority.certificate

    def kubeconfig(
        self,
        path: Path,
        *,
        token: str | None = None,
        token_file: Path | None = None,
        client: Pair | None = None,
        namespace: str = "default",
        insecure: bool = False,
    ) -> Path:
        """Write a kubeconfig, and return its path. It has the token of the admin, or the given token, file with a token
        or client certificate.

        ``insecure``: clients do not check the server's certificate.
        """
        cluster: Body = {"server": self.url}
        if insecure:
            cluster["insecure-skip-tls-verify"] = True
        elif self.ca_file is not None:
            cluster["certificate-authority"] = str(self.ca_file)
        if client is not None:
            user: Body = {"client-certificate": str(client.certificate), "client-key": str(client.key)}
        elif token_file is not None:
            user = {"tokenFile": str(token_file)}
        else:
            user = {"token": token or self.token}
        whole = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "me", "user": user}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": namespace}}],
            "current-context": "fake",
        }
        path.write_text(json.dumps(whole, indent=1))
        path.chmod(0o600)
        return path

    # What it is

    def uninstall(self, *api_versions: str) -> None:
        """Have none of the kinds of these versions, such as ``kubeflow.org/v1``, as a server without their operator."""
        self._missing |= {*api_versions}

    def has(self, of: Resource) -> bool:
        """Whether the server has a kind."""
        return of.api_version not in self._missing

    def namespace_admin(self, namespace: str = "default", *, user: str = "newcomer") -> str:
        """Return the token of a user with a RoleBinding to the usual ClusterRole ``admin`` in one namespace."""
        self.put("clusterroles", {"metadata": {"name": "admin"}, "rules": list(NAMESPACE_ADMIN)})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
        metadata = {"name": f"admin-{user}", "namespace": namespace}
        self.put(
            "rolebindings",
            {"metadata": metadata, "roleRef": role, "subjects": [{"kind": "User", "name": user}]},
        )
        return self.access.issue(user)

    # Objects, without the API: no checks, and with the status

    def put(self, kind: str | Resource, body: Mapping[str, Any]) -> Body:
        """Add or replace an object without changes, except that missing metadata is added. Return the stored object."""
        of = resource(kind)
        metadata = dict(body["metadata"])
        key = Key(metadata.get("namespace", "default") if of.namespaced else "", metadata["name"])
        with self.store.lock:
            before = self.store.get(of, key)
            old = {} if before is None else before.body()["metadata"]
            if of.namespaced:
                metadata["namespace"] = key.namespace
            metadata.setdefault("uid", old.get("uid") or str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", old.get("creationTimestamp") or rfc3339(self.clock.now()))
            new = {**body, "metadata": metadata}
            return _shown(of, self.store.write(of, key, new))

    def apply(self, documents: Iterable[Mapping[str, Any]], *, namespace: str = "default") -> None:
        """Create or update the objects of parsed manifests, in ``namespace`` unless they name one. Raises KeyError for
        a kind that the server does not have.
        """
        for each in documents:
            of = BY_KIND[each["apiVersion"], each["kind"]]
            key = Key(each["metadata"].get("namespace", namespace) if of.namespaced else "", each["metadata"]["name"])
            with self.store.lock:
                new = lifecycle.new(of, key, dict(each), now=self.clock.now())
                before = self.store.get(of, key)
                if before is not None:
                    new = lifecycle.changed(
                        of, before.body(), {**each, "metadata": dict(each["metadata"])}, subresource=""
                    )
                self.store.write(of, key, new)

    def create(self, kind: str | Resource, body: Mapping[str, Any], *, namespace: str = "default") -> Body:
        """Create an object as the API does for an admin: webhooks are called, and the server makes the status. Raises
        ApiError.
        """
        of = resource(kind)
        call = Call("create", of, namespace if of.namespaced else "", "", "", {})
        return _shown(of, self.verbs.create(call, dict(body)))

    def change(self, kind: str | Resource, name: str, patch: Mapping[str, Any], *, namespace: str = "default") -> Body:
        """Apply a strategic merge patch to an object and its status. Raises KeyError if the object does not exist."""
        of = resource(kind)
        key = Key(namespace if of.namespaced else "", name)
        with self.store.lock:
            new = patches.strategic(self._record(of, key).body(), dict(patch))
            return _shown(of, self.store.write(of, key, new))

    def delete(self, kind: str | Resource, name: str, *, namespace: str = "default", grace: int | None = None) -> None:
        """Delete an object as the API does: pods that run get a grace period. ``grace``: in seconds. Raises KeyError if
        the object does not exist.
        """
        of = resource(kind)
        with self.store.lock:
            record = self._record(of, Key(namespace if of.namespaced else "", name))
            self.verbs.delete(of, record, {}, grace=grace)

    def remove(self, kind: str | Resource, name: str, *, namespace: str = "default") -> None:
        """Remove an object of any kind at once. Raises KeyError if it does not exist."""
        of = resource(kind)
        key = Key(namespace if of.namespaced else "", name)
        with self.store.lock:
            self._record(of, key)
            self.store.write(of, key, None)

    def get(self, kind: str | Resource, name: str, *, namespace: str = "default") -> Body:
        """Return an object. Raises KeyError if it does not exist."""
        of = resource(kind)
        return _shown(of, self._record(of, Key(namespace if of.namespaced else "", name)))

    def all(self, kind: str | Resource) -> list[Body]:
        of = resource(kind)
        with self.store.lock:
            shelf = self.store.shelf(of)
            records = [shelf.records[key] for key in shelf.keys]
        return [_shown(of, each) for each in records]

    def _record(self, of: Resource, key: Key) -> Record:
        if (record := self.store.get(of, key)) is None:
            raise KeyError(f"{of.plural} {'/'.join(key)}")
        return record

    def _connected(self, connection: socket.socket) -> socket.socket | None:
        self.counts.connected()
        if self.resetting:
            web.reset(connection)
            return None
        while self.hanging and not web.peer_gone(connection):
            if self.stopping.wait(0.05):
                return None
        return web.secured(connection, self.context)

    # Failures of the server

    def refuse(self) -> None:
        """Refuse new connections, and reset open ones. The server keeps its port."""
        self._listener.refuse()
        self.drop()

    def accept(self) -> None:
        """Accept connections again."""
        self._listener.listen()

    def drop(self) -> None:
        """Reset all open connections."""
        self._listener.drop()
        for each in self.watches():
            each.vanish()

    def answering(self) -> contextlib.AbstractContextManager[None]:
        """Mark that this thread answers a request. Only for the server itself."""
        return self._listener.answering()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Refuse connections within the context."""
        self.refuse()
        try:
            yield
        finally:
            self.accept()

    @contextlib.contextmanager
    def resets(self) -> Iterator[None]:
        """Accept connections and reset them within the context. Unlike :meth:`down`, this counts the attempts."""
        self.resetting = True
        self.drop()
        try:
            yield
        finally:
            self.resetting = False

    @contextlib.contextmanager
    def hangs(self) -> Iterator[None]:
        """Accept connections within the context, but send nothing on them, not even a handshake of TLS or an end. Open
        connections continue. Afterwards the waiting connections are answered.
        """
        self.hanging = True
        try:
            yield
        finally:
            self.hanging = False

    @contextlib.contextmanager
    def stalls(self, *kinds: str | Resource) -> Iterator[None]:
        """Stop the updates of the watch caches of these kinds, or of all, within the context, as if the server's own
        watch of its store were dead.

        Requests that need no fresh data get the old content of the cache. These are lists at version 0 or at a version
        that the cache has, and watches at any version. These stay open, and get only bookmarks at the cache's version.
        Requests without a version are answered from the store. Requests with a later version are refused after a while
        (504). Afterwards the watches get the events that they have missed.
        """
        chosen = [resource(each) for each in kinds]
        self.store.stall(*chosen)
        try:
            yield
        finally:
            self.store.catch_up(*chosen)

    def restart(self, *, cold: float = 1.0) -> None:
        """Restart: reset connections, and drop the history, as a server loses its watch cache. For ``cold`` seconds the
        server knows no roles, and answers 403 to all users but administrators.
        """
        self.refuse()
        self.execs.cut()
        self.store.catch_up()
        self.store.compact()
        self.access.cold(cold)
        self.accept()

    def restore(self, backup: Backup) -> None:
        """Restart with the content and the versions of ``store.backup()``, as after a restore of etcd."""
        self.refuse()
        self.store.restore(backup)
        self.accept()

    def rotate_ca(self) -> None:
        """Make a new CA and a new certificate for new connections. ``ca_file`` is then another file."""
        if self._folder is None:
            self._folder = Path(
                self._temporary.enter_context(
                    tempfile.TemporaryDirectory(prefix=f"{marks.PREFIX}{marks.owner()}-kube-")
                )
            )
        number = len(list(self._folder.glob("ca*.crt")))
        self.authority = Authority(self._folder, f"ca{number}")
        pair = self.authority.server("127.0.0.1", "localhost", "kubernetes.default.svc")
        self.context = self.authority.context(pair)

    def watches(self, kind: str | Resource = "") -> list[Watch]:
        """Return the watches that are open now, of one kind or of all."""
        with self._lock:
            return [each for each in self._watches if not kind or each.call.resource is resource(kind)]

    def close_watches(self, kind: str | Resource = "") -> None:
        """End all watches, of one kind or of all, in the same way as at their timeouts."""
        for each in self.watches(kind):
            each.close()

    @contextlib.contextmanager
    def watching(self, call: Call) -> Iterator[Watch]:
        """Register a watch while it is open. Only for the server itself."""
        watch = Watch(self.store, self.clock, call)
        with self._lock:
            self._watches.append(watch)
        try:
            yield watch
        finally:
            with self._lock:
                self._watches.remove(watch)


class _Kubelet(threading.Thread):
    """Removes pods when the grace period of their deletion ends, on every node."""

    def __init__(self, server: KubeServer) -> None:
        super().__init__(name="kube-kubelet")
        self._server = server
        self._pods = resource("pods")
        self._seen = server.store.revision
        self._due: list[tuple[float, Key, str]] = []

    def run(self) -> None:
        server = self._server
        shelf = server.store.shelf(self._pods)
        while not server.stopping.is_set():
            with server.store.lock:
                self._look()
                if not server.stopping.is_set():
                    left = self._due[0][0] - server.clock.now() if self._due else 1.0
                    shelf.changed.wait(min(max(left, 0.01), 1.0))

    def _look(self) -> None:
        store = self._server.store
        shelf = store.shelf(self._pods)
        for event in shelf.events[shelf._after(self._seen) :]:
            if event.type == "MODIFIED" and b'"deletionTimestamp"' in event.record.rest:
                metadata = event.record.body()["metadata"]
                if at := metadata.get("deletionTimestamp"):
                    heapq.heappush(self._due, (unix(at), event.record.key, event.record.uid))
        self._seen = store.revision
        while self._due and self._due[0][0] <= self._server.clock.now():
            _, key, uid = heapq.heappop(self._due)
            record = shelf.records.get(key)
            if record is not None and record.uid == uid:
                self._server.verbs.delete(self._pods, record, {}, grace=0)


def _shown(of: Resource, record: Record) -> Body:
    return json.loads(listing.alone(of, record))  # type: ignore[no-any-return]
