"""Real hvd-discover processes, and a client for their socket."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.processes import RunningProcess, run_process
from tests.support.serving import UnixConnection


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
