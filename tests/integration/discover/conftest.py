"""Daemons in processes of their own or in this one, and a client for their socket."""

import contextlib
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from discover.cli import settings_from
from discover.daemon import assembly
from discover.daemon.loop import EventQueue
from hvd_elastic_ext.core.clock import Clock
from tests.support.processes import RunningProcess, run_process
from tests.support.serving import UnixConnection


class DaemonHere(threading.Thread):
    """A daemon in this process. A start takes no second, and its log is pytest's; it gets no signals."""

    def __init__(self, options: Sequence[object], clock: Clock | None) -> None:
        super().__init__(name="daemon")
        self._clock = clock
        self._settings = settings_from([*map(str, options)], {})
        self._inbox = EventQueue()
        self._code: int | None = None

    def run(self) -> None:
        self._code = assembly.serve(self._settings, life="test", inbox=self._inbox, clock=self._clock)

    def wait(self, timeout: float) -> int | None:
        """Return the exit code."""
        self.join(timeout)
        assert not self.is_alive(), f"the daemon still runs after {timeout:g} s"
        return self._code

    def __enter__(self) -> "DaemonHere":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._inbox.end("the test is over", 0)
        self.join()


class Place:
    """A directory in which a daemon watches ``in`` and publishes ``out/hosts`` and ``s``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.watched = directory / "in"
        self.hosts = directory / "out" / "hosts"
        self.socket = directory / "s"

    @property
    def options(self) -> list[str]:
        return ["--source", "file", "--watch", str(self.watched), "--hosts-file", str(self.hosts)]

    def run(self, *options: object) -> contextlib.AbstractContextManager[RunningProcess]:
        return self.run_as([*self.options, *options])

    def serve(self, *options: object) -> contextlib.AbstractContextManager[RunningProcess]:
        return self.serve_as([*self.options, *options])

    def run_as(self, options: Sequence[object]) -> contextlib.AbstractContextManager[RunningProcess]:
        """Run a daemon with only these options."""
        return run_process([sys.executable, "-m", "discover.cli", *map(str, options)])

    def serve_as(self, options: Sequence[object]) -> contextlib.AbstractContextManager[RunningProcess]:
        return self.run_as(["--listen", f"unix://{self.socket}", *options])

    def serve_here(self, options: Sequence[object], *, clock: Clock | None = None) -> DaemonHere:
        return DaemonHere(["--listen", f"unix://{self.socket}", *options], clock)

    def get(self, target: str) -> tuple[int, str]:
        with contextlib.closing(UnixConnection(self.socket)) as connection:
            connection.request("GET", target)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def published(self) -> str | None:
        return self.hosts.read_text() if self.hosts.exists() else None

    def litter(self) -> set[str]:
        """Return the files in the published directory other than the hosts file and its lock."""
        return {entry.name for entry in self.hosts.parent.iterdir()} - {"hosts", ".hosts.lock"}


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def hosts(tmp_path) -> Path:
    path = tmp_path / "hosts"
    path.write_text("old:1\n")
    return path
