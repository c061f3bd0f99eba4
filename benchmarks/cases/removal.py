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
        try:
            first = job.wait_for(
                "step of a world of 1",
                lambda: steps.first_at(job.stamps(), size=1, after=changed),
                timeout=DEADLINE_S,
            )
        except jobs.TooLate:
            return {QUANTITY: [Timing(DEADLINE_S, at_least=True)]}
        return {QUANTITY: [Timing(first.mono - changed)]}


CASE: Final = Case(
    name="graceful-removal",
    about="one of 2 hosts is taken out of the hosts file; the other trains on",
    figures=(Figure(QUANTITY, bar_s=0.25, bar_ratio=1 / 3),),
    measure=measure,
)
