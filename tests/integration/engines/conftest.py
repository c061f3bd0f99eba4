"""Jobs with the engines that start other processes for each world."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.integration.launcher.conftest import Launched

LEARNER = Path(__file__).with_name("learner.py")
OPTIONS = ("--rsh", "local", "--settle", "1", "--heartbeat-timeout", "60", "--blacklist-cooldown-range", "600", "600")
"""Every host is this machine. A host that has failed does not return within a test."""


AHEAD = 150
"""Steps from the request to stop to the last step: some seconds, in which every rank reads the request."""


class Job(Launched):
    """One job of ``learner.py``."""

    def command(self, engine: str, *words: str | Path, processes: int = 2, script: tuple[str, ...] = ()) -> list[str]:
        script = script or (sys.executable, str(LEARNER), "1000000")
        sizes = ("-np", str(processes), "--min-np", "1")
        return ["--engine", engine, *OPTIONS, *sizes, "--state-dir", str(self.directory / "state"), *words, *script]

    def worlds(self, size: int) -> list[list[tuple[int, int]]]:
        """Return for each world of this size that trains the count and pid of each rank, in any order."""
        found = re.findall(r"goes on count=(\d+) size=(\d+) pid=(\d+)", self.process.output)
        those = [(int(count), int(pid)) for count, of, pid in found if int(of) == size]
        return [those[at : at + size] for at in range(0, len(those) - size + 1, size)]

    def wait_for_world(self, size: int, *, number: int = 1) -> int:
        """Wait until the ``number``-th world of this size trains. Return the count from which all its ranks
        continue."""
        self.wait_for(
            f"world {number} of {size}",
            lambda: len(self.worlds(size)) >= number and self.steps_at(size) > 2,
            timeout=400.0,
        )
        counts = {count for count, _ in self.worlds(size)[number - 1]}
        assert len(counts) == 1, self.process.output
        return counts.pop()

    def stop(self) -> str:
        """Let training end well. Return the standard output."""
        done = max(record.get("step") for record in self.events("stepped"))
        fresh = self.directory / "stop.new"
        fresh.write_text(str(done + AHEAD))
        fresh.rename(self.directory / "stop")
        assert self.process.wait(240) == 0, self.process.output
        return self.process.stdout

    def counted(self, event: str) -> list[int]:
        return [record.get("step") for record in self.events(event)]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)
