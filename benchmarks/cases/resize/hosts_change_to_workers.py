"""From a change of the hosts file to the last worker that knows it.

A host is removed. Ours notifies every worker, which notes the time. Stock's driver notifies one worker, after its next
look at the hosts, and the others learn it at the end of a step. For these workers, the interrupt of the training
function counts; for ours it counts if it comes earlier.
"""

from __future__ import annotations

import random
from typing import Final

from benchmarks import jobs, steps
from benchmarks.model import Case, Figure, Timing, Trial, Values

QUANTITY: Final = "hosts file to the last worker that knows"
DEADLINE_S: Final = 20.0
BAR_S: Final = 0.03
STEPS, QUICK_STEPS = 40, 8
SIZES, QUICK_SIZES = (3, 2), (2,)


def measure(trial: Trial) -> Values:
    """Remove hosts of three workers until one worker is left. A quick run begins with two workers."""
    settle, sizes, found = trial.pick(STEPS, QUICK_STEPS), trial.pick(SIZES, QUICK_SIZES), []
    with jobs.training(trial, jobs.Shape(hosts=jobs.HOSTS[: sizes[0]], max_np=sizes[0])) as job:
        for size in sizes:
            job.settle(size, steps_each=settle)
            jobs.between_polls(job, random.Random(trial.number))
            members = steps.members(job.stamps())
            staying = [members[rank].host for rank in range(size - 1)]
            changed = job.set_hosts(jobs.lines(staying)).mono
            found.append(last_to_know(job, [member.pid for member in members.values()], changed=changed))
    return {QUANTITY: found}


def last_to_know(job: jobs.Job, pids: list[int], *, changed: float) -> Timing:
    """Return the time from ``changed`` until each of these processes has learned of the change."""

    def last() -> float | None:
        first = {pid: [mono for mono, listener in job.notified() if listener == pid and mono > changed] for pid in pids}
        return max(min(moments) for moments in first.values()) if all(first.values()) else None

    return job.time_until("worker that knows", last, since=changed, deadline=DEADLINE_S)


CASE: Final = Case(
    name="hosts-change-to-workers",
    about="a host is taken out of the hosts file; every worker knows",
    figures=(Figure(QUANTITY), Figure(QUANTITY, "p99", bar_s=BAR_S)),
    measure=measure,
    repeats=7,
)
