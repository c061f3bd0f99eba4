"""Decides whether a new world forms. ``world`` begins it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.departures import clean_exits
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.next_world import WorldDecision
from hvd_elastic_ext.launcher.state.effects.engines.engine import engine_of
from hvd_elastic_ext.launcher.state.planner_answer import Plan, WorldQuestion

log = logging.getLogger(__name__)


def plan(job: JobState, questions: Sequence[WorldQuestion]) -> Plan:
    """Decide on the next world, unless an answer to the ``questions`` holds it back."""
    before, held = job.decision, clean_exits.why_not(job)
    job.decision = engine_of(job).advance(job) if held is None else held
    for question in questions:
        if (held_back := question.why_not(job)) is not None:
            job.decision = WorldDecision(None, "", *held_back)
    decision, limit = job.decision, job.options.reset_limit
    if decision.reason != before.reason:
        log.debug("%s%s", f"{decision.cause}: " if decision.cause else "", decision.reason)
    changes = decision.members is not None and job.world.begun
    if changes and limit is not None and job.world.changes >= limit:
        job.fail(JobFailed(f"the world would change for the {limit + 1}th time; --reset-limit is {limit}"))
    return Plan(decision.again_at)
