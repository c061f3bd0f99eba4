"""The whole daemon on a server whose watch caches stand still: its clock is fast, all else is real."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from discover.cli import settings_from
from discover.daemon import assembly
from discover.daemon.loop import EventQueue
from tests.contract.discover.followed_server import HurriedClock
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until

__all__ = ["kube"]

FAST = 25.0
"""How much faster than the machine's its clock runs: a stalled server is found out after a minute at the earliest."""

LABELS = bodies.mpi_worker_labels("job")


class Following:
    """A daemon in this process, and what stands in its file."""

    def __init__(self, folder: Path, server: KubeServer) -> None:
        self.file = folder / "hosts"
        kubeconfig = server.kubeconfig(folder / "kubeconfig")
        options = ["--source=kubernetes", "--job=job", f"--kubeconfig={kubeconfig}", f"--hosts-file={self.file}"]
        self._settings = settings_from([*options, "--admission-probe=none", "--settle=0.1", "--no-events"], {})

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        inbox = EventQueue()
        options = {"life": "test", "inbox": inbox, "clock": HurriedClock(FAST)}
        daemon = threading.Thread(target=assembly.serve, args=[self._settings], kwargs=options, name="daemon")
        daemon.start()
        try:
            yield
        finally:
            inbox.end("the test is over", 0)
            daemon.join()

    def publishes(self, *names: str) -> None:
        wait_until(lambda: self._names() == set(names), what=f"{names}", timeout=100, show=self._names)

    def _names(self) -> set[str]:
        lines = self.file.read_text().split() if self.file.exists() else ["nothing"]
        return {line.partition(".")[0] for line in lines}


def put(server: KubeServer, name: str) -> None:
    server.put("nodes", bodies.node(f"node-of-{name}"))
    server.put("pods", bodies.pod(name, node=f"node-of-{name}", labels=LABELS))


def test_hosts_that_go_and_come_while_no_watch_is_told_anything_are_found_out(kube: KubeServer, tmp_path: Path) -> None:
    daemon = Following(tmp_path, kube)
    for name in ("a", "b"):
        put(kube, name)
    with daemon.running():
        daemon.publishes("a", "b")
        with kube.stalls():
            put(kube, "c")
            kube.delete("pods", "a", grace=600)
            daemon.publishes("b", "c")
            kube.delete("pods", "b", grace=600)
            put(kube, "d")
            daemon.publishes("c", "d")
        put(kube, "e")
        daemon.publishes("c", "d", "e")
