"""A second host comes: how long the first one pauses for it, and how long it takes until both train.

It is measured with a newcomer that starts at once, and with one that needs 20 s more: survivors must not wait for it.
Then the newcomer is killed. No change of a world can take less time than this one, so in the same job it is the floor
of the pause. Beside it, the time of two ranks that know their places is measured
(``benchmarks/scripts/bare_ranks.py``), because after the kill the remaining rank connects to no other one.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Final

from benchmarks import jobs, steps
from benchmarks.cases.resize.shrink import BARE, bare
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values

STALL: Final = "survivor's longest pause"
JOINED: Final = "hosts file to first step at size 2"
LOST: Final = "kill -9 of the newcomer to the survivor's next step"
DEADLINE_S: Final = 90.0
STEPS, QUICK_STEPS = 60, 8
SLOW_S, QUICK_SLOW_S = 20.0, 1.0
BAR_S, BAR_RATIO = 0.25, 1 / 8
BAR_FLOOR: Final = 1.2
KILL_S: Final = 60.0


def measure(trial: Trial, *, slowly: bool) -> Values:
    """Measure one growth from 1 to 2."""
    settle = trial.pick(STEPS, QUICK_STEPS)
    slow = (jobs.HOSTS[1], trial.pick(SLOW_S, QUICK_SLOW_S)) if slowly else None
    with jobs.training(trial, jobs.Shape(hosts=jobs.HOSTS[:1], max_np=2), slow=slow) as job:
        job.settle(1, steps_each=settle)
        survivor = steps.members(job.stamps())[0].pid
        jobs.between_polls(job, random.Random(trial.number))
        changed = job.set_hosts(jobs.lines(jobs.HOSTS[:2])).mono
        try:
            job.settle(2, steps_each=settle, timeout=DEADLINE_S)
        except jobs.TooLate:
            return {STALL: [Timing(DEADLINE_S, at_least=True)], JOINED: [Timing(DEADLINE_S, at_least=True)]}
        found = figures(job.stamps(), survivor=survivor, changed=changed)
        newcomer = next(s.pid for s in steps.members(job.stamps()).values() if s.pid != survivor)
        killed = job.kill(newcomer).mono

        def step() -> float | None:
            first = steps.first_at(job.stamps(), size=1, after=killed)
            return None if first is None else first.mono

        found = {**found, LOST: [job.time_until("step of the survivor", step, since=killed, deadline=KILL_S)]}
    return found if trial.side == "stock" else {**found, BARE.format(2): [bare(trial, 2)]}


def figures(stamps: list[steps.Stamp], *, survivor: int, changed: float) -> Values:
    """Return both quantities. Raises :class:`BenchmarkError` if the first worker did not survive."""
    first = steps.first_at(stamps, size=2, after=changed)
    if first is None or not any(s.pid == survivor and s.size == 2 for s in stamps):
        raise BenchmarkError("the first worker did not live to see the second")
    try:
        stall = steps.stall(stamps, pid=survivor, changed=changed)
    except ValueError as error:
        raise BenchmarkError(str(error)) from None
    return {STALL: [Timing(stall)], JOINED: [Timing(first.mono - changed)]}


def case(name: str, about: str, *, slowly: bool, repeats: int) -> Case:
    """Return the case of a fast or a slow newcomer; the bar for survivors is the same."""
    return Case(
        name=name,
        about=about,
        figures=(
            Figure(STALL, bar_s=BAR_S, bar_ratio=BAR_RATIO, floor=LOST, bar_floor=BAR_FLOOR),
            Figure(JOINED, bar_ratio=None if slowly else 1.0),
            Figure(LOST),
            Figure(BARE.format(2), sides=("ours",)),
        ),
        measure=partial(measure, slowly=slowly),
        repeats=repeats,
    )


CASES: Final = (
    case("growth-stall", "a second host comes; the first goes on with it", slowly=False, repeats=5),
    case("growth-slow-boot", f"the same, and the newcomer takes {SLOW_S:g} s to boot", slowly=True, repeats=2),
)
