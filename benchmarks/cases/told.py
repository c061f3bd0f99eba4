"""From the hosts file's change to the last worker that knows of it.

A host is taken away. Ours tells every worker; each notes when it was told. Stock's driver tells one,
after its next look at the hosts, and the others learn of it from that one at the end of a
step: for them, and for ours where that is earlier, what counts is when the training function is interrupted.
"""

from __future__ import annotations

import random
from typing import Final

from benchmarks import jobs, steps
from benchmarks.model import Case, Figure, Timing, Trial, Values

QUANTITY: Final = "hosts file to the last worker that knows"
DEADLINE_S: Final = 20.0
BAR_S: Final = 0.03
STEPS, QUICK_STEPS = 40, 20


def measure(trial: Trial) -> Values:
    """Three workers, then two, then one: the last one's host leaves."""
    settle, found = QUICK_STEPS if trial.quick else STEPS, []
    with jobs.training(trial, jobs.Shape(hosts=jobs.HOSTS, max_np=3)) as job:
        for size in (3, 2):
            job.settle(size, steps_each=settle)
            jobs.between_polls(job, random.Random(trial.number))
            members = steps.members(job.stamps())
            staying = [members[rank].host for rank in range(size - 1)]
            changed = job.set_hosts(jobs.lines(staying)).mono
            found.append(last_to_know(job, [member.pid for member in members.values()], changed=changed))
    return {QUANTITY: found}


def last_to_know(job: jobs.Job, pids: list[int], *, changed: float) -> Timing:
    """Until each of these processes has learned of what happened at ``changed``."""

    def last() -> float | None:
        first = {pid: [mono for mono, teller in job.told() if teller == pid and mono > changed] for pid in pids}
        return max(min(moments) for moments in first.values()) if all(first.values()) else None

    try:
        return Timing(job.wait_for("worker that knows", last, timeout=DEADLINE_S) - changed)
    except jobs.TooLate:
        return Timing(DEADLINE_S, at_least=True)


CASE: Final = Case(
    name="hosts-change-to-workers",
    about="a host is taken out of the hosts file; every worker knows",
    figures=(Figure(QUANTITY), Figure(QUANTITY, "p99", bar_s=BAR_S)),
    measure=measure,
    repeats=7,
)
