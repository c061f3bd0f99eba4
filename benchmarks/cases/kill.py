"""``kill -9`` of one worker: how long until the others train on without it.

Which rank is killed goes round with the repetitions, the same on both sides:
rank 0 coordinates Horovod's worlds, so its loss may cost another time than that
of the rest. Extremes are reported beside the median, because what matters here
is the survivor that notices last.
"""

from __future__ import annotations

from benchmarks import jobs, steps
from benchmarks.cases.removal import next_step
from benchmarks.model import Case, Figure, Trial, Values

STEPS, QUICK_STEPS = 40, 20


def quantity(size: int) -> str:
    """What the table calls a recovery from ``size`` workers."""
    return f"kill to next step, {size} to {size - 1} workers"


def measure(trial: Trial, *, size: int) -> Values:
    """One kill in a world of ``size``."""
    with jobs.training(trial, jobs.Shape(hosts=jobs.HOSTS[:size], max_np=size)) as job:
        job.settle(size, steps_each=QUICK_STEPS if trial.quick else STEPS)
        victim = steps.members(job.stamps())[trial.number % size]
        killed = job.kill(victim.pid).mono
        return {quantity(size): [next_step(job, size=size - 1, changed=killed)]}


def case(size: int, *, repeats: int) -> Case:
    """The case for a world of ``size``.

    ``repeats`` is to be odd: stock's times with three workers fall into two groups far
    apart, and a median between the groups would be a time that nobody ever waited.
    """
    return Case(
        name=f"kill-recovery-{size}",
        about=f"kill -9 of one of {size} workers; the others train on",
        figures=(
            Figure(quantity(size), "median", bar_ratio=1.2, slack_s=0.05),
            Figure(quantity(size), "maximum"),
        ),
        measure=lambda trial: measure(trial, size=size),
        repeats=repeats,
    )
