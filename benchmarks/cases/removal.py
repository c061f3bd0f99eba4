"""A host is taken out of the hosts file: how long until the other trains on alone."""

from __future__ import annotations

import random
from typing import Final

from benchmarks import jobs, steps
from benchmarks.model import Case, Figure, Timing, Trial, Values

QUANTITY: Final = "hosts file to first step at size 1"
DEADLINE_S: Final = 60.0
STEPS, QUICK_STEPS = 40, 20


def measure(trial: Trial) -> Values:
    """One removal, 2 to 1: the host of rank 1 goes."""
    with jobs.training(trial, jobs.Shape(hosts=jobs.HOSTS[:2], max_np=2)) as job:
        job.settle(2, steps_each=QUICK_STEPS if trial.quick else STEPS)
        jobs.between_polls(job, random.Random(trial.number))
        changed = job.set_hosts(jobs.lines([steps.members(job.stamps())[0].host])).mono
        return {QUANTITY: [next_step(job, size=1, changed=changed)]}


def next_step(job: jobs.Job, *, size: int, changed: float, deadline: float = DEADLINE_S) -> Timing:
    """From the change to the first step of a world of ``size``."""
    try:
        first = job.wait_for(
            f"step of a world of {size}",
            lambda: steps.first_at(job.stamps(), size=size, after=changed),
            timeout=deadline,
        )
    except jobs.TooLate:
        return Timing(deadline, at_least=True)
    return Timing(first.mono - changed)


CASE: Final = Case(
    name="graceful-removal",
    about="one of 2 hosts is taken out of the hosts file; the other trains on",
    figures=(Figure(QUANTITY, bar_s=0.25, bar_ratio=1 / 3),),
    measure=measure,
)
