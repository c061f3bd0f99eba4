"""When all that holds the training is about to go, what was trained is made durable while there is time.

One checkpoint at once, since a notice may come true early, and one as late as it can be made for sure: of that
nobody trains any further, so that nothing is lost.
"""

from __future__ import annotations

import math
from typing import Final

from hvd_elastic_ext.launcher.planners.checkpoints import coordinator, cost
from hvd_elastic_ext.launcher.rules.membership.membership import Decision
from hvd_elastic_ext.launcher.state.checkpoints import Call
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import Plan

BEFORE_S: Final = 5.0
"""The last checkpoint begins so long before the end at the latest, beside a multiple of what one takes."""
SHORTEST_S: Final = 30.0
"""So much time a notice is thought to leave that does not say: the least that clouds give."""
OVER_S: Final = 60.0
"""An end that has not come for so long does not come: training goes on."""


def call(now: float, by: float | None, before_s: float) -> Call:
    """Say what is to be done for an end at ``by`` (mono; None if there is none): see :func:`before_s`. Pure."""
    if by is None or now > by + OVER_S:
        return Call.NONE
    return Call.LAST if now >= by - before_s else Call.NOW


def before_s(durable_s: float, waited_s: float = 0.0) -> float:
    """So long before the end the last checkpoint begins. Pure.

    ``durable_s``: how long one takes from its commit on; ``waited_s``: how long its commit is waited for, in which
    ranks may be busy with something that is no step.
    """
    return BEFORE_S + 3.0 * durable_s + 2.0 * waited_s


def plan(job: JobState) -> Plan:
    """Ask for a checkpoint at once, and for the last one in time."""
    state = job.before_preemption
    now = job.now
    known = _known(job, job.preemption.all_by)
    before = before_s(cost.durable_s(job), job.checkpoints.waited_s)
    wanted = call(now, known, before)
    if state.made is Call.LAST and not job.checkpoints.nobody_goes_on:
        state.made = Call.NONE  # another world has formed, and trains
    if state.made is Call.LAST and wanted is Call.NOW:
        wanted = Call.LAST  # it was faster than thought; to train on for that might cost what was saved
    if wanted is not state.made:
        if wanted is Call.NONE:
            coordinator.go_on(job)
            state.made = wanted
        elif coordinator.now_please(job, stay=wanted is Call.LAST):
            state.made = wanted
    return Plan(None if known is None or wanted is not Call.NOW else known - before)


def held_back(job: JobState, decision: Decision) -> Decision:
    """The decision, or that no world is formed: what it trained would be lost, and all before is on storage."""
    if decision.members is None or job.before_preemption.made is not Call.LAST or not coordinator.has_all(job):
        return decision
    return Decision(None, "", "all that training needs is about to go, and the last checkpoint is made")


def _known(job: JobState, by: float | None) -> float | None:
    """``by``: when less than training needs will be left (mono; infinite if unknown); None if enough will be."""
    part = job.before_preemption
    if by != math.inf:
        part.since = None
        return by
    part.since = job.now if part.since is None else part.since
    return part.since + SHORTEST_S
