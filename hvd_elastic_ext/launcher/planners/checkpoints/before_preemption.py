"""Checkpoints before all hosts that training needs are taken away.

One is made at once, since hosts may go earlier than noticed, and one as late as is safe. No process trains beyond the
second one, so that nothing is lost.
"""

from __future__ import annotations

import math

from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.rules.checkpoints.before_preemption import SHORTEST_S, Call, decide, lead_s
from hvd_elastic_ext.launcher.state.planner_answer import HeldBack, Plan


def plan(job: JobState) -> Plan:
    """Ask for a checkpoint at once, and for the last one in time."""
    state = job.before_preemption
    now = job.now
    known = _known(job, job.preemption.all_by)
    before = lead_s(job.cost.durable_s, job.checkpoints.waited_s)
    wanted = decide(now, known, before)
    if state.made is Call.LAST and not job.checkpoints.holds_training:
        state.made = Call.NONE  # another world has formed, and trains
    if state.made is Call.LAST and wanted is Call.NOW:
        wanted = Call.LAST  # it was faster than expected; steps after it could be lost
    if wanted is not state.made:
        if wanted is Call.NONE:
            attempt.withdraw_request(job)
            state.made = wanted
        elif attempt.request(job, stay=wanted is Call.LAST):
            state.made = wanted
    return Plan(None if known is None or wanted is not Call.NOW else known - before)


def why_not(job: JobState) -> HeldBack | None:
    """Why the next world does not form: the last checkpoint is made, and further steps would be lost."""
    if job.decision.members is None or job.before_preemption.made is not Call.LAST or not job.covers_all_commits:
        return None
    return HeldBack("all that training needs is about to go, and the last checkpoint is made")


def _known(job: JobState, by: float | None) -> float | None:
    """``by``: when less than training needs will be left (mono; infinite if unknown); None if enough will be."""
    part = job.before_preemption
    if by != math.inf:
        part.since = None
        return by
    part.since = job.now if part.since is None else part.since
    return part.since + SHORTEST_S
