"""Jobs whose ranks print each of their steps, and the rules for those steps under any fault."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from hvd_elastic_ext.core.journal import Record
from tests.integration.launcher.conftest import ELASTIC, Launched
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

TRAINEE: Final = Path(__file__).with_name("trainee.py")
COMMIT_EVERY: Final = 5
JOB: Final = f"faults-{os.getpid()}"
"""A host has one agent for each job name, so other test sessions on this machine use other names."""
QUIET: Final = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
"""Settings of TensorFlow, which others do not read."""
QUICK: Final = ("--settle", "0.2", "--blacklist-cooldown-range", "2", "10", "--min-np", "1")

_STEP = re.compile(
    r"step (\d+) rank (\d+) size (\d+) host (\S+) mono ([\d.]+) wall ([\d.]+) print (\w+) user (.*)$", re.MULTILINE
)

Popen = Callable[..., contextlib.AbstractContextManager[RunningProcess]]


class Step(NamedTuple):
    """One printed step of one rank."""

    count: int
    rank: int
    size: int
    host: str
    mono: float
    wall: float
    fingerprint: str
    user: str


class Training(Launched):
    """One job of :mod:`tests.faults.launcher.trainee`. ``popen`` starts its launcher, here or on another host.
    ``trains``: with "torch" or "tensorflow"."""

    popen: Popen = staticmethod(run_process)

    def __init__(self, directory: Path, engine: str = "horovod", *, trains: str = "torch") -> None:
        super().__init__(directory)
        self.engine = engine
        self._framework = trains
        self._reading: RunningProcess | None = None
        self._steps: dict[tuple[str, ...], Step] = {}
        self._read_to = 0

    @property
    def state_dir(self) -> Path:
        """The job's folder."""
        return self.directory / ".hvd-elastic" / JOB

    @contextlib.contextmanager
    def train(
        self,
        *options: str | Path,
        source: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        wrap: tuple[str, ...] = (),
    ) -> Iterator[RunningProcess]:
        """Run the trainee. ``wrap``: words before the launcher's command."""
        source = source or ("--hosts-file", str(self.hosts))
        named = ("--job", JOB, "--journal", str(self.journal), "--engine", self.engine)
        words = [*source, *named, *QUICK, *map(str, options), sys.executable, str(TRAINEE)]
        settings = {
            "HVD_ELASTIC_SAMPLE": "0",
            "OMP_NUM_THREADS": "1",
            "TRAINS": self._framework,
            **QUIET,
            **(env or {}),
        }
        with self.popen([*wrap, *ELASTIC, "run", *words], env=settings, cwd=self.directory) as process:
            self.process = process
            yield process

    def wait_for(self, what: str, found: Callable[[], object], *, timeout: float = 60.0) -> None:
        def look() -> object:
            ended = self.process.returncode
            value = found()
            assert value or ended is None, f"the job ended ({ended}) before {what} came\n{self._details()}"
            return value

        wait_until(look, what=what, timeout=timeout, show=self._details)

    def _details(self) -> str:
        """Return details for a failure: all output except the steps, the last lines, and the journal."""
        lines = self.process.output.splitlines()
        told = [line for line in lines if "step " not in line]
        journal = [line for line in self.journal.read_text().splitlines() if '"stepped"' not in line]
        return "\n".join([*told[-100:], *lines[-10:], *journal[-60:]])

    def shown(self) -> list[Step]:
        """Return all steps so far, in the order in which they were printed.

        Output that may be lost with a connection is repeated, so a line may come twice; its step is returned once. Each
        call parses only new lines.
        """
        if self._reading is not self.process:
            self._reading, self._steps, self._read_to = self.process, {}, 0
        for found in _STEP.finditer(self.process.stdout, self._read_to):
            count, rank, size, host, mono, wall, *rest = found.groups()
            step = Step(int(count), int(rank), int(size), host, float(mono), float(wall), *rest)
            self._steps.setdefault(found.groups(), step)
            self._read_to = found.end()
        return list(self._steps.values())

    def wait_for_size(self, size: int, *, more: int = 5, timeout: float = 90.0) -> None:
        """Wait for ``more`` steps from now on, on every rank of a world of ``size``."""
        before = len(self.shown())

        def ranks() -> bool:
            counts = [0] * size
            for step in self.shown()[before:]:
                counts = [0] * size if step.size != size else counts
                if step.size == size:
                    counts[step.rank] += 1
            return min(counts) >= more

        self.wait_for(f"{more} steps of a world of {size}", ranks, timeout=timeout)

    def of_rank_0(self) -> list[Step]:
        """Return the steps of rank 0 in the order in which they were done. Lines of two hosts may come in another
        order."""
        return sorted((step for step in self.shown() if step.rank == 0), key=lambda step: step.mono)

    def causes(self) -> list[str]:
        return [record.get("cause") for record in self.events("resized")]

    def last(self, event: str) -> Record:
        return self.events(event)[-1]

    def check_steps(self, *, first: int = 1) -> None:
        """Check that no step was skipped, that no more than one commit's steps were lost, and that ranks have the same
        state."""
        steps = self.shown()
        prints: dict[int, str] = {}
        for step in steps:
            assert prints.setdefault(step.count, step.fingerprint) == step.fingerprint, step
        ranks_0 = self.of_rank_0()
        assert ranks_0
        assert ranks_0[0].count == first
        for before, after in pairwise(ranks_0):
            assert before.count - COMMIT_EVERY <= after.count - 1 <= before.count, (before, after)

    def check_uninterrupted(self, host: str) -> None:
        """Check that a host did every step exactly once, in order, and that nothing was rolled back."""
        counts = [step.count for step in self.shown() if step.host == host]
        assert counts == list(range(counts[0], counts[0] + len(counts)))
        assert not self.events("rolled_back")

    def longest_pause(self, host: str, *, since: float, until: float = math.inf) -> float:
        """Return the longest time in seconds between two steps of a host within these times (mono)."""
        times = [step.mono for step in self.shown() if step.host == host and since <= step.mono <= until]
        return max((after - before for before, after in pairwise(times)), default=0.0)


ANY_ENGINE = pytest.mark.parametrize("training", ["horovod"], indirect=True)
"""For faults in which the engine takes no part: of the host list, of files, of clocks, of the launcher."""


@pytest.fixture(params=["horovod", pytest.param("torch", marks=pytest.mark.soak)])
def training(tmp_path: Path, request: pytest.FixtureRequest) -> Training:
    """A job under each engine whose processes stay."""
    return Training(tmp_path, request.param)
