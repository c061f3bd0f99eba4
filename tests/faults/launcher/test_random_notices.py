"""A hundred hosts get notice at random moments of a job, 30 s before their end: almost no step is lost."""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from hvd_elastic_ext.core.journal import Record, read
from tests.faults.launcher import traces
from tests.faults.launcher.spot import CHANNELS, Cloud, Life
from tests.integration.launcher.conftest import ELASTIC
from tests.support import marks
from tests.support.processes import RunningProcess, run_process
from tests.support.waiting import wait_until

NOTICES: Final = int(os.environ.get("HVD_TEST_NOTICES", "40"))
IN_S: Final = 30.0
AT_MOST: Final = 1
"""The most notices that may cost a step, or end with a process that is killed at work."""
SEED: Final = int(os.environ.get("HVD_TEST_SEED", "20260"))
HOSTS: Final = 5
ALL: Final = 2
"""How often all hosts leave at once."""
AT_ONCE: Final = (1, 1, 1, 2, 2, 3)
"""Otherwise one of these numbers of hosts leaves, chosen at random."""
PAUSE_S: Final = 1.5
"""Longest time from when there are enough hosts again to the next notice."""
LONGEST_S: Final = 300.0
NOTICED: Final = Path(__file__).with_name("noticed.py")
JOB: Final = f"notices-{os.getpid()}"


class Round(NamedTuple):
    """Notices that were given at one moment (mono)."""

    at: float
    lives: list[Life]

    def __str__(self) -> str:
        def one(life: Life) -> str:
            channel = life.told[0] if life.told else "nothing"
            gone = f"gone after {life.gone - self.at:.1f} s" if life.gone else "not gone"
            return f"{life.name} by {channel}, {gone}{', by force' if life.forced else ''}"

        return f"notice at {self.at:.3f} to {'; '.join(map(one, self.lives))}"


class Job:
    """One job, under several launchers one after the other. ``records``: its journal so far."""

    def __init__(self, folder: Path, cloud: Cloud) -> None:
        self.folder = folder
        self.cloud = cloud
        self.traces = folder / "traces"
        self.records: list[Record] = []
        self.size = 0
        self._journal = folder / "journal.jsonl"
        self._offset = 0
        self._process: RunningProcess
        self.traces.mkdir()

    @contextlib.contextmanager
    def run(self) -> Iterator[RunningProcess]:
        """Start the job, or continue it."""
        state = ["--state-dir", self.folder / "state", "--checkpoint-dir", self.folder / "checkpoints"]
        quick = ["--settle", "0.2", "--checkpoint-every", "notice", "--heartbeat-timeout", "20"]
        size = ["-np", HOSTS, "--min-np", "1", "--max-np", HOSTS]
        named = ["--job", JOB, "--journal", self._journal]
        words = [*self.cloud.options, *named, *state, *quick, *size, sys.executable, NOTICED, self.traces, SEED]
        with run_process([*ELASTIC, "run", *map(str, words)], env={"OMP_NUM_THREADS": "1"}, cwd=self.folder) as process:
            self._process = process
            yield process

    def look(self) -> None:
        """Read the new part of the journal, and end the hosts whose processes have left."""
        with contextlib.suppress(FileNotFoundError), self._journal.open() as file:
            file.seek(self._offset)
            text = file.read()
            whole = text[: text.rfind("\n") + 1]
            self._offset += len(whole.encode())
            for record in read(whole.splitlines()):
                self._take(record)
        self._let_go()

    def _take(self, record: Record) -> None:
        if record.event == "spawned":
            life = next(life for life in reversed(self.cloud.lives) if life.name == record.get("host"))
            with contextlib.suppress(OSError):  # it has ended since then
                life.agent = marks.parent(marks.parent(record.get("pid")))
                life.pids.append(record.get("pid"))
        if record.event == "resized":
            self.size = record.get("size")
        if record.event != "stepped" or not self.records or self.records[-1].event != "stepped":
            self.records.append(record)

    def _let_go(self) -> None:
        for life in self.cloud.here():
            if life.told is not None and (life.has_left or time.monotonic() >= life.told[2]):
                life.forced = not life.has_left
                self.cloud.end(life)

    def wait_for(self, what: str, found: Callable[[], bool]) -> None:
        """Look at everything again and again until ``found`` returns true."""

        def look() -> bool:
            self.look()
            assert self._process.returncode is None, f"the job ended before {what} came\n{self.details()}"
            return found()

        wait_until(look, what=what, timeout=LONGEST_S, interval=0.02, show=self.details)

    def details(self, since: float = 0.0, until: float = math.inf) -> str:
        """Return the journal and the launcher's output of this time."""
        told = [record for record in self.records if since <= record.mono <= until]
        lines = [f"{each.mono:.3f} {each.event} {dict(each.fields)}" for each in told[-60:]]
        return "\n".join([f"seed {SEED}", *lines, *self._process.stderr.splitlines()[-20:]])

    def working(self) -> list[Life]:
        """Return the hosts with a process that may train, and without notice."""
        return [life for life in self.cloud.here() if life.told is None and any(map(marks.start_time, life.pids))]


def episodes(chance: random.Random) -> list[list[int]]:
    """Return how many hosts leave each time, :data:`NOTICES` in all. Each episode but the last ends with all hosts."""
    rest = NOTICES - ALL * HOSTS
    planned: list[int] = []
    while sum(planned) < rest:
        planned.append(min(rest - sum(planned), chance.choice(AT_ONCE)))
    ends = [round(len(planned) * number / (ALL + 1)) for number in range(ALL + 2)]
    parts = [planned[begin:end] for begin, end in pairwise(ends)]
    return [*([*part, HOSTS] for part in parts[:-1]), parts[-1]]


def send_away(job: Job, chance: random.Random, count: int) -> Round:
    """Give notice to ``count`` hosts at a random moment. Some may not train yet. Wait until they are gone."""
    job.wait_for("enough hosts", lambda: len(job.working()) >= count and job.size >= min(count + 1, HOSTS))
    moment = time.monotonic() + chance.uniform(0.0, PAUSE_S)
    job.wait_for("the moment", lambda: time.monotonic() >= moment)
    lives = chance.sample(job.working(), count)
    given = Round(time.monotonic(), lives)
    job.cloud.give_notice(lives, in_s=IN_S)
    job.wait_for("their end", lambda: all(life.gone is not None for life in lives))
    return given


def replace(cloud: Cloud, chance: random.Random, gone: list[Life]) -> None:
    """Start other hosts in place of those that are gone, some with the same names."""
    for life in gone:
        cloud.add(life.name if chance.random() < 0.5 else None)
    cloud.publish()


def losses(job: Job, given: list[Round]) -> Iterator[tuple[Round, int, int, str]]:
    """Yield the notices after which steps were done again: how many by the traces and by the journal, and the
    details."""
    again = traces.done_again(traces.read(job.traces))
    told = [record for record in job.records if record.get("steps_lost")]
    for each, until in zip(given, [*(after.at for after in given[1:]), math.inf], strict=True):
        steps = [step.count for step in again if each.at <= step.mono < until]
        said = [record.get("steps_lost") for record in told if each.at <= record.mono < until]
        if steps or said:
            around = job.details(each.at - 1.0, min(until, each.at + IN_S) + 1.0)
            which = (
                f"{len(steps)} steps, {min(steps)} to {max(steps)}, were done again" if steps else "none was done again"
            )
            yield each, len(steps), sum(said), f"{each}: {which}; by the journal {said}\n{around}"


def summary(given: list[Round]) -> str:
    """Return by channel how long hosts took to leave, if others stayed."""
    lines = [f"seed {SEED}: {sum(len(each.lives) for each in given)} notices"]
    for channel in CHANNELS:
        took = sorted(
            life.gone - each.at
            for each in given
            for life in each.lives
            if len(each.lives) < HOSTS and life.gone is not None and life.told is not None and life.told[0] == channel
        )
        if took:
            lines.append(
                f"by {channel}: {len(took)}, gone after {took[len(took) // 2]:.1f} s, at most {took[-1]:.1f} s"
            )
    return "; ".join(lines)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_hosts_leave_at_random_moments_within_their_notice(
    tmp_path: Path,
) -> None:
    chance = random.Random(SEED)
    cloud = Cloud(tmp_path, chance)
    for _ in range(HOSTS):
        cloud.add()
    job, given = Job(tmp_path, cloud), list[Round]()
    cloud.publish()
    with cloud.open():
        for episode in episodes(chance):
            with job.run() as process:
                for count in episode:
                    given.append(send_away(job, chance, count))
                    if count < HOSTS:
                        replace(cloud, chance, given[-1].lives)
                job.wait_for("training", lambda: not cloud.here() or job.size == HOSTS)
                process.kill()
            if not cloud.here():  # the launcher's host is gone, too; only the storage is left
                shutil.rmtree(tmp_path / "state")
                job.size = 0
                replace(cloud, chance, given[-1].lives)
    print(summary(given))
    check(job, given)


def check(job: Job, given: list[Round]) -> None:
    """Check that almost nothing was lost, that almost no host stayed too long, and that losses are journalled. After a
    loss of all hosts, training continued from exactly the last step."""
    steps = traces.read(job.traces)
    assert sum(len(each.lives) for each in given) == NOTICES
    assert traces.missing(steps) == []
    assert traces.divided(steps) == []
    lost = list(losses(job, given))
    assert not [step for step in traces.done_again(steps) if step.mono < given[0].at]
    late = [str(each) for each in given for life in each.lives if life.forced and len(each.lives) < HOSTS]
    cost = sum(len(each.lives) for each, *_ in lost)
    assert cost + len(late) <= AT_MOST, "\n\n".join([*late, *(text for *_, text in lost)])
    untold = [text for each, done, said, text in lost if done > said and len(each.lives) < HOSTS]
    assert not untold, "\n\n".join(untold)
    resumed = [record for record in job.records if record.event == "resumed"]
    last = [max(step.count for step in steps if step.mono < record.mono) for record in resumed]
    assert [record.get("step") for record in resumed] == last
    assert len(resumed) == ALL
