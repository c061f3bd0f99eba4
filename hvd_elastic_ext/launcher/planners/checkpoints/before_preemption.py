"""Checkpoints before all hosts that training needs are taken away.

One is made at once, since hosts may go earlier than noticed, and one as late as is safe. No process trains beyond the
second one, so that nothing is lost.
"""

from __future__ import annotations

import math
from typing import Final

from hvd_elastic_ext.launcher.planners.checkpoints import coordinator, cost
from hvd_elastic_ext.launcher.state.checkpoints import Call
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import HeldBack, Plan

BEFORE_S: Final = 5.0
"""Part of the time before the end at which the last checkpoint begins; see :func:`lead_s`."""
SHORTEST_S: Final = 30.0
"""Assumed time left by a notice that names none: the least that clouds give."""
OVER_S: Final = 60.0
"""Training continues if hosts are still there so long after the announced end."""


def decide(now: float, by: float | None, lead_s: float) -> Call:
    """Which checkpoint an end at ``by`` (mono; None: no end is known) calls for. Pure."""
    if by is None or now > by + OVER_S:
        return Call.NONE
    return Call.LAST if now >= by - lead_s else Call.NOW


def lead_s(durable_s: float, waited_s: float = 0.0) -> float:
    """Seconds before the end at which the last checkpoint begins. Pure.

    ``durable_s``: time from its commit to its completion; ``waited_s``: time until the named commit is made.
    """
    return BEFORE_S + 3.0 * durable_s + 2.0 * waited_s


def plan(job: JobState) -> Plan:
    """Ask for a checkpoint at once, and for the last one in time."""
    state = job.before_preemption
    now = job.now
    known = _known(job, job.preemption.all_by)
    before = lead_s(cost.durable_s(job), job.checkpoints.waited_s)
    wanted = decide(now, known, before)
    if state.made is Call.LAST and not job.checkpoints.holds_training:
        state.made = Call.NONE  # another world has formed, and trains
    if state.made is Call.LAST and wanted is Call.NOW:
        wanted = Call.LAST  # it was faster than expected; to train on could lose what comes after it
    if wanted is not state.made:
        if wanted is Call.NONE:
            coordinator.withdraw_request(job)
            state.made = wanted
        elif coordinator.request(job, stay=wanted is Call.LAST):
            state.made = wanted
    return Plan(None if known is None or wanted is not Call.NOW else known - before)


def why_not(job: JobState) -> HeldBack | None:
    """Why the next world does not form: the last checkpoint is made, and what it trains would be lost."""
    if (
        job.decision.members is None
        or job.before_preemption.made is not Call.LAST
        or not coordinator.covers_all_commits(job)
    ):
        return None
    return HeldBack("all that training needs is about to go, and the last checkpoint is made")


def goes_on_at(job: JobState) -> float | None:
    """When training continues at the latest although hosts were to go (mono); None if no end is known."""
    by, since = job.preemption.all_by, job.before_preemption.since
    if by == math.inf:
        by = None if since is None else since + SHORTEST_S
    return None if by is None else by + OVER_S


def _known(job: JobState, by: float | None) -> float | None:
    """``by``: when less than training needs will be left (mono; infinite if unknown); None if enough will be."""
    part = job.before_preemption
    if by != math.inf:
        part.since = None
        return by
    part.since = job.now if part.since is None else part.since
    return part.since + SHORTEST_S
