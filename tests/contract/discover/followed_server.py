"""A reflector on our API server, over real sockets, and what it has told so far."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from discover.watch.audit import WatchAudit
from discover.watch.cluster import Cluster, Timeouts
from discover.watch.collection import Collection, Request
from discover.watch.reflector import PODS, Reflector
from hvd_elastic_ext.io.kube.access import Access
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until
from tests.unit.discover.scripted_collection import CountedMetrics

LABELS = {"job": "job"}


class HurriedClock:
    """Runs ``factor`` times as fast as the machine's."""

    def __init__(self, factor: float = 1.0) -> None:
        self._factor = factor

    def wall(self) -> float:
        return time.time()

    def mono(self) -> float:
        return time.monotonic() * self._factor

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        return event.wait(None if timeout is None else timeout / self._factor)


class Counting:
    """A collection that remembers what was asked of it: a server that refuses connections cannot count them."""

    def __init__(self, inner: Collection) -> None:
        self._inner = inner
        self.requests: list[Request] = []

    def open(self, request: Request) -> Generator[bytes, None, None]:
        self.requests.append(request)
        return self._inner.open(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Follower:
    """``asked``: the requests so far."""

    def __init__(self, collection: Collection, clock: HurriedClock) -> None:
        self.clock = clock
        self.collection = Counting(collection)
        self.counted = CountedMetrics()
        self.reflector = Reflector(
            self.collection, PODS, lambda _: None, clock=clock, draw=random.random, metrics=self.counted
        )

    @property
    def asked(self) -> list[str]:
        return [request.ask.name for request in self.collection.requests]

    @property
    def versions(self) -> list[str]:
        return [request.version for request in self.collection.requests]

    @property
    def names(self) -> set[str]:
        return {view.key.name for view in self.reflector.known()[0].values()}

    def waits_for(self, *names: str) -> None:
        wait_until(lambda: self.names == set(names), what=f"exactly {names}", timeout=60, show=lambda: self.names)

    def watches(self) -> None:
        wait_until(lambda: self.reflector.status.watching, what="a watch", timeout=60)


@contextmanager
def followed(
    where: Path | KubeServer,
    folder: Path,
    *,
    clock: HurriedClock | None = None,
    timeouts: Timeouts | None = None,
    access: Access | None = None,
) -> Iterator[Follower]:
    """Follow the pods of a server, by the admin's token unless a kubeconfig is given."""
    if access is None:
        kubeconfig = where.kubeconfig(folder / "kubeconfig") if isinstance(where, KubeServer) else where
        access = Access(str(kubeconfig))
    cluster = Cluster(access, timeouts=timeouts or Timeouts())
    follower = Follower(cluster.pods("default", lambda: "job=job"), clock or HurriedClock())
    follower.reflector.start()
    try:
        yield follower
    finally:
        follower.reflector.stop()


@contextmanager
def rechecked(follower: Follower, folder: Path) -> Iterator[None]:
    """Look beside the watch, too, over connections of its own."""
    beside = Cluster(Access(str(folder / "kubeconfig"))).pods("default", lambda: "job=job")
    audit = WatchAudit(beside, follower.reflector, clock=follower.clock)
    audit.start()
    try:
        yield
    finally:
        audit.stop()


def eventually(condition: Callable[[], object], what: str) -> None:
    wait_until(condition, what=what, timeout=60)
