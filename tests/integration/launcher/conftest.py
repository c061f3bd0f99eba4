"""Real ``hvd-elastic run`` processes on this machine."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.journal import Record, read
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

ELASTIC = [sys.executable, "-m", "hvd_elastic_ext.cli"]
COUNTER = Path(__file__).with_name("counter.py")


_HEAD: Final = 80
"""Bytes at the beginning of a journal that identify it: they include the time of its first line."""
_known: dict[Path, tuple[bytes, int, list[Record]]] = {}


def records(journal: Path, *names: str) -> list[Record]:
    """Return a journal's records of these events so far. Each line is parsed once, however often a test looks."""
    try:
        file = journal.open("rb")
    except FileNotFoundError:
        return []
    with file:
        head, size = file.read(_HEAD), os.fstat(file.fileno()).st_size
        before, offset, found = _known.get(journal, (b"", 0, []))
        if head != before or size < offset:
            offset, found = 0, []
        file.seek(offset)
        lines, end, _ = file.read().rpartition(b"\n")
        found += read(lines.decode().split("\n"))
        _known[journal] = head, offset + len(lines + end), found
    return [record for record in found if record.event in names]


class Launched:
    """One job: its hosts file, which the test rewrites, and its journal."""

    elastic: Sequence[str] = ELASTIC

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hosts = directory / "hosts"
        self.journal = directory / "journal.jsonl"
        self.process: RunningProcess

    def set_hosts(self, *lines: str) -> None:
        fresh = self.hosts.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.rename(self.hosts)

    @contextlib.contextmanager
    def run(self, *arguments: str | Path, source: tuple[str, ...] = ()) -> Iterator[RunningProcess]:
        """Run a job. ``arguments``: options and the command. ``source``: options for the hosts, by default the hosts
        file."""
        source = source or ("--hosts-file", str(self.hosts))
        command = [*self.elastic, "run", *source, "--journal", str(self.journal), *map(str, arguments)]
        env = {"HVD_ELASTIC_SAMPLE": "0", "PYTHONWARNINGS": "error::ResourceWarning"}
        with run_process(command, env=env, cwd=self.directory) as process:
            self.process = process
            yield process
        # The garbage collector of launcher, agents and helpers found nothing that they should have closed.
        assert "ResourceWarning" not in process.output, process.output

    def events(self, *names: str) -> list[Record]:
        return records(self.journal, *names)

    def wait_for(self, what: str, found: Callable[[], object], *, timeout: float = 60.0) -> None:
        wait_until(found, what=what, timeout=timeout, show=lambda: self.process.output)

    def steps_at(self, size: int) -> int:
        """Return the number of steps that a world of ``size`` has done since the last world formed."""
        formed = self.events("resized")
        since = formed[-1].mono if formed else 0.0
        return sum(r.get("size") == size and r.mono > since for r in self.events("stepped"))

    def wait_for_steps(self, size: int, *, timeout: float = 60.0) -> None:
        self.wait_for(f"steps of a world of {size}", lambda: self.steps_at(size) > 2, timeout=timeout)

    def pids(self) -> dict[str, int]:
        """Return the pid of the newest training process of each host."""
        return {record.get("host"): record.get("pid") for record in self.events("spawned")}


@pytest.fixture
def launched(tmp_path: Path) -> Launched:
    return Launched(tmp_path)


class Answer(NamedTuple):
    """Of ``hvd-elastic``."""

    code: int
    out: str
    err: str


Ask = Callable[..., Answer]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Ask:
    """Run ``hvd-elastic`` with these words in this process, in the test's folder."""
    monkeypatch.chdir(tmp_path)

    def asked(*words: str) -> Answer:
        capfd.readouterr()
        return Answer(cli.main(words), *capfd.readouterr())

    return asked


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
