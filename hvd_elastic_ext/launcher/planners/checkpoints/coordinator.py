"""Which commit becomes a checkpoint, and when: begins an attempt that is due, and gives up one that cannot succeed."""

from __future__ import annotations

import logging
import math
from typing import Final

from hvd_elastic_ext.launcher.checkpoints.attempt import WRITE_S, begin, give_up, resume_waiting
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import due
from hvd_elastic_ext.launcher.state.facts.checkpoints import members, newest_of_all, newest_step
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)

GIVES_WAY_S: Final = 30.0
"""Most seconds for which a checkpoint that is due waits for results of calls that are sent."""
STATELESS_AFTER_S: Final = 30.0
"""A process that trains this long without a commit has no State of ours."""


def plan(job: JobState) -> Plan:
    """Begin a checkpoint that is due; give up an attempt if its world has changed or its time is over."""
    state = job.checkpoints
    if job.options.durability is None:
        return NOTHING
    now = job.now
    if not job.settled:
        job.cost.slowing.breaks()
    elif state.attempt is None:
        job.cost.slowing.trains(now, newest_step(job))
    _warn_of_stateless(job)
    if state.staying is not None and state.staying.generation != job.generation:
        resume_waiting(job, state.staying)  # into the next world
    attempt = state.attempt
    if attempt is None:
        if now >= state.not_before and _due(job) and not _gives_way(job):
            state.gives_way_since = None
            begin(job)
    elif attempt.generation != job.generation or not (
        attempt.at_rest or len(job.roster.present(attempt.ranks)) == len(attempt.ranks)
    ):
        give_up(job, "the world has changed", blame=False)
    elif now >= attempt.deadline:
        give_up(job, f"no answer from {', '.join(sorted(job.helpers[Purpose.CHECKPOINT]))} after {WRITE_S:g} s")
    return Plan(_next_look(job))


def _gives_way(job: JobState) -> bool:
    """Whether a checkpoint that is due waits for results of calls that are being sent to another slot.

    A host runs one helper: where checkpoints come more often than such a transfer takes, no newcomer would ever get
    results.
    """
    state = job.checkpoints
    if job.calls.transfer is None or state.asked:
        return False
    if state.gives_way_since is None:
        state.gives_way_since = job.now
    return job.now < state.gives_way_since + GIVES_WAY_S


def _warn_of_stateless(job: JobState) -> None:
    """Warn once that a script without a State of ours gets no checkpoints."""
    state = job.checkpoints
    if state.logged_stateless or not job.settled:
        return
    others = [
        each for each in members(job) if each.holds is None and each.step and job.now - each.since > STATELESS_AFTER_S
    ]
    if others:
        state.logged_stateless = True
        reason = f"{others[0].seat} trains without a State of hvd_elastic_ext; use one, or --adopt"
        log.warning("no checkpoint is made: %s", reason)
        job.record("not_sealed", reason=reason)


def _next_look(job: JobState) -> float:
    """When something may be due (mono)."""
    state, how = job.checkpoints, job.options.durability
    if how is None or how.every.notice_only:
        return math.inf
    if state.attempt is not None:
        return state.attempt.deadline
    if state.gives_way_since is not None and job.now < state.gives_way_since + GIVES_WAY_S:
        return state.gives_way_since + GIVES_WAY_S
    seconds = job.cost.choice.seconds if how.every.seconds is None else how.every.seconds
    at = math.inf if how.every.steps else max(state.not_before, state.last.at + seconds)
    return at if at > job.now else math.inf  # a checkpoint that is due and cannot be made yet needs no earlier look


def _due(job: JobState) -> bool:
    state = job.checkpoints
    assert job.options.durability is not None
    newest = newest_of_all(job)
    if newest is None or not job.settled:
        return False
    every, seconds = job.options.durability.every, job.cost.choice.seconds
    return state.asked or due(job.now, newest_step(job), state.last, every, seconds)
