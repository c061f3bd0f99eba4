"""Runs one seed: a job and its faults. Returns a report."""

from __future__ import annotations

import heapq
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from tests.faults.chaos.checker import places_of_spares, violations
from tests.faults.chaos.faults import Acts
from tests.faults.chaos.job import LOOK_S, Job
from tests.faults.chaos.plan import FAULTS_S, MOST_SLOTS, Fault, Plan

BEGIN_S: Final = 180.0
"""Longest time in seconds until the first world trains."""
WHOLE_S: Final = 150.0
"""Longest time in seconds from the last fault until a world of all processes trains.

It includes ``--commit-wait`` for a holder that cannot be reached, then the longest cooldown, then the start of
processes on a machine with ten times more load than it can handle.
"""
END_S: Final = 60.0
"""Longest time in seconds for the last steps."""
LAST_STEPS: Final = 60
QUIET: Final = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
"""Settings of TensorFlow, which others do not read."""
OPTIONS: Final = (
    *("--settle", "0.3", "--blacklist-cooldown-range", "1", "4", "--heartbeat-interval", "0.5"),
    *("--heartbeat-timeout", "4", "--orphan-grace", "30", "--failure-budget", "10000", "--elastic-timeout", "300"),
)


class Report(NamedTuple):
    """The result of a seed. ``happened``: lines with the times of the plan."""

    plan: Plan
    happened: list[str]
    problems: list[str]
    words: str

    @property
    def well(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        found = "\n".join(f"  {problem}" for problem in self.problems[:20])
        happened = "\n".join(self.happened)
        return f"{self.plan}\n\nWhat happened:\n{happened}\n\n{self.words}\n\nseed {self.plan.seed}:\n{found}"


def options(plan: Plan, folder: Path, engine: str) -> tuple[str, ...]:
    """Return the options of the launcher."""
    size = ("-np", str(plan.size), "--min-np", "1", *(("--max-np", str(plan.most)) if plan.most else ()))
    size += ("--spares", str(plan.spares)) if plan.spares is not None else ()
    storage = ("--checkpoint-dir", str(folder / "checkpoints"), "--checkpoint-every", "3s") if plan.checkpoints else ()
    return ("--engine", engine, *size, *OPTIONS, *storage)


def run(
    plan: Plan,
    folder: Path,
    *,
    engine: str = "horovod",
    trains: str = "torch",
    faults_s: float = FAULTS_S,
    told: Callable[[str], object] = lambda _: None,
) -> Report:
    """Run the job of a plan in an empty folder. ``told`` is called with a line for each thing that happens.

    ``trains``: with "torch" or "tensorflow". ``faults_s``: seconds of the plan.
    """
    happened: list[str] = []

    def tell(line: str) -> None:
        happened.append(line)
        told(line)

    name, env = f"chaos-{plan.seed}-{os.getpid()}", {"TRAINS": trains, **QUIET}
    with Job(folder, name, *options(plan, folder, engine), env=env) as job:
        problems = _course(job, plan, faults_s, tell)
        words = job.details() if problems else ""
    return Report(plan, happened, problems, words)


def _course(job: Job, plan: Plan, faults_s: float, tell: Callable[[str], object]) -> list[str]:
    job.set_hosts(plan.listed)
    job.start()
    goal: int | None = None
    problems: list[str] = []
    try:
        job.wait_for("the first steps", lambda: job.last_step() > 2, timeout=BEGIN_S)
        _Course(job, plan, faults_s, tell).run()
        goal = _end(job, plan, tell)
        problems += job.left_behind()
    except AssertionError as error:
        problems.append(str(error).partition("\n")[0])
    seen = job.seen(goal=goal)
    return [*violations(seen), *places_of_spares(seen, slots=MOST_SLOTS, most=plan.most), *problems]


def _end(job: Job, plan: Plan, tell: Callable[[str], object]) -> int:
    """After the last fault: wait for a world of all processes, then let training end. Return the last step."""
    since = time.monotonic()
    job.wait_for(f"a world of {plan.size}", lambda: job.last_step(size=plan.size, since=since) > 0, timeout=WHOLE_S)
    tell(f"a world of {plan.size} trains {time.monotonic() - since:.1f} s after the last fault")
    goal = job.set_goal(LAST_STEPS)
    code = job.wait(END_S)
    tell(f"the job ended with {code} after step {goal}")
    assert code == 0, f"the job ended with {code}"
    return goal


class _Course:
    """Makes the faults of a plan when they are due, and undoes them."""

    def __init__(self, job: Job, plan: Plan, faults_s: float, tell: Callable[[str], object]) -> None:
        self._job, self._plan, self._faults_s, self._tell = job, plan, faults_s, tell
        self._acts = Acts(job, plan.listed)
        self._began = time.monotonic()
        self._number = itertools.count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        for fault in plan.faults:
            self._at(fault.at, lambda fault=fault: self._make(fault))  # type: ignore[misc]

    def run(self) -> None:
        while self._now() < self._faults_s:
            self._job.watch.look()
            while self._due and self._due[0][0] <= self._now():
                heapq.heappop(self._due)[2]()
            assert self._job.ended is None, f"the job ended with {self._job.ended} while faults were made"
            pause = self._due[0][0] - self._now() if self._due else LOOK_S
            time.sleep(max(0.0, min(pause, LOOK_S)))
        self._acts.undo_all()
        self._tell(f"{self._now():7.3f} s  all hosts are there again")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _at(self, at: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._due, (at, next(self._number), act))

    def _make(self, fault: Fault) -> None:
        at = self._now()
        act = self._acts.make(fault)
        self._tell(f"{at:7.3f} s  [{time.monotonic():.3f}] {fault.told}: {act.said}".rstrip(": "))
        if act.later is not None:
            later = act.later
            self._at(self._now() + later.after_s, lambda: self._tell(f"{self._now():7.3f} s  {later.act()}"))
