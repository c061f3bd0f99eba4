"""Decides whether a new world forms, and what happens if none can."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.planners.checkpoints import before_sleep
from hvd_elastic_ext.launcher.planners.engines.engine import engine_of
from hvd_elastic_ext.launcher.planners.membership import shortage, world
from hvd_elastic_ext.launcher.rules.membership.next_world import Decision
from hvd_elastic_ext.launcher.state.facts import memory
from hvd_elastic_ext.launcher.state.facts.custody import is_awaited
from hvd_elastic_ext.launcher.state.facts.shortage import why_short
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import Plan, WorldQuestion

log = logging.getLogger(__name__)


def plan(job: JobState, questions: Sequence[WorldQuestion]) -> Plan:
    """Decide on the next world and begin it, unless an answer to the ``questions`` holds it back."""
    before, job.decision = job.decision, engine_of(job).decide(job)
    for question in questions:
        if (held_back := question.why_not(job)) is not None:
            job.decision = Decision(None, "", *held_back)
    decision = job.decision
    if decision.reason != before.reason:
        log.debug("%s%s", f"{decision.cause}: " if decision.cause else "", decision.reason)
    if decision.members is None:
        _wait(job, decision)
    else:
        _begin(job, decision)
    times = (decision.again_at, memory.next_look(job))
    return Plan(min((at for at in times if at is not None and at > job.now), default=None))


def _wait(job: JobState, decision: Decision) -> None:
    if job.can_end_by_itself:
        return
    if job.custody.holds_back:  # that wait has its own limit
        job.short_since = None
    short = why_short(job)
    if short is None or not is_awaited(job):  # only the newest commit may be saved
        job.fail(before_sleep.save_before(job, short=short))
    if not job.before_sleep.going:
        job.fail(shortage.timed_out(job, decision))


def _begin(job: JobState, decision: Decision) -> None:
    limit = job.options.reset_limit
    if limit is not None and job.world.begun and job.world.changes >= limit:
        job.fail(JobFailed(f"the world would change for the {limit + 1}th time; --reset-limit is {limit}"))
        return
    job.short_since = None
    before_sleep.training_resumed(job)
    engine_of(job).begun(job)
    world.change(job, decision)
    job.save()
