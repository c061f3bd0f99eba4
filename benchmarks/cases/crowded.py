"""Sixteen ranks on one machine, one of which leaves: how long until the others train on.

It is a matter of how processes find one another: each asks for the addresses of all others.
"""

from __future__ import annotations

import random
from typing import Final

from benchmarks import jobs
from benchmarks.cases.removal import next_step
from benchmarks.model import Case, Figure, Trial, Values

QUANTITY: Final = "hosts file to first step at size 15"
RANKS, QUICK_RANKS = 16, 4
START_S: Final = 180.0
"""Until so many interpreters have imported torch."""
DEADLINE_S: Final = 90.0
STEPS: Final = 8


def measure(trial: Trial) -> Values:
    """One removal: all but one rank are on one host, the last one on another."""
    ranks = QUICK_RANKS if trial.quick else RANKS
    staying, going = f"{jobs.HOSTS[0]}:{ranks - 1}", jobs.HOSTS[1]
    with jobs.training(trial, jobs.Shape(hosts=(staying, going), max_np=ranks)) as job:
        job.settle(ranks, steps_each=STEPS, timeout=START_S)
        jobs.between_polls(job, random.Random(trial.number))
        changed = job.set_hosts([staying]).mono
        return {QUANTITY: [next_step(job, size=ranks - 1, changed=changed, deadline=DEADLINE_S)]}


CASE: Final = Case(
    name="removal-16",
    about=f"one of {RANKS} ranks on one machine leaves; the others train on",
    figures=(Figure(QUANTITY, bar_ratio=1 / 5),),
    measure=measure,
    repeats=2,
)
