"""A host's cable is pulled, and the list of hosts goes on naming it: how long until the other trains on alone.

Nothing ends, nothing is reset: only silence says that the host is gone. Ours is given 3 s for it.
"""

from __future__ import annotations

from typing import Final

from benchmarks import jobs, netns, steps
from benchmarks.cases.removal import next_step
from benchmarks.model import BenchmarkError, Case, Figure, Trial, Values

QUANTITY: Final = "link cut to first step at size 1"
HOSTS: Final = ("h1", "h2")
TIMEOUT_S: Final = 3
START_S: Final = 180.0
"""Stock starts over ssh by and by, an interpreter for each step on the way."""
DEADLINE_S: Final = 40.0
BAR_S: Final = 4.5
STEPS, QUICK_STEPS = 40, 20


def measure(trial: Trial) -> Values:
    """One cut in a world of 2: the host of rank 1."""
    with netns.made(trial, HOSTS) as hosts:
        shape = jobs.Shape(
            hosts=HOSTS,
            max_np=2,
            ours=("--heartbeat-timeout", str(TIMEOUT_S)),
            within=hosts.within(trial.folder),
            interface=netns.INTERFACE,
        )
        with jobs.training(trial, shape) as job:
            job.settle(2, steps_each=QUICK_STEPS if trial.quick else STEPS, timeout=START_S)
            gone = steps.members(job.stamps())[1].host
            if gone not in HOSTS:
                raise BenchmarkError(f"rank 1 says that it is on {gone!r}")
            cut = hosts.cut(gone).mono
            return {QUANTITY: [next_step(job, size=1, changed=cut, deadline=DEADLINE_S)]}


CASE: Final = Case(
    name="link-cut",
    about=f"one of 2 hosts is cut off; the other trains on (--heartbeat-timeout {TIMEOUT_S})",
    figures=(Figure(QUANTITY, bar_s=BAR_S),),
    measure=measure,
    repeats=2,
    missing=netns.missing,
)
