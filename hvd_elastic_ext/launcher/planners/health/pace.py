"""Logs that a world makes no step, whom it waits for, and what follows if that lasts. It decides nothing."""

from __future__ import annotations

import logging

from hvd_elastic_ext.launcher.rules.health.pace import LINE_PERIOD_S, StepPause, log_again_s, next_line_hint
from hvd_elastic_ext.launcher.state.facts.pace import pause_of, what_follows
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Worker

log = logging.getLogger(__name__)


def plan(job: JobState) -> Plan:
    """Log a pause, unless another wait is logged.

    It returns no time for the next look, because a log line changes nothing else. In a job of thousands, with its
    longer times between looks, a pause is logged later.
    """
    state = job.pace
    members = job.roster.present(job.world.members)
    if not members or not job.settled:
        state.since, state.began, state.log_at = job.now, None, None
        return NOTHING
    if not log.isEnabledFor(logging.INFO):
        return NOTHING  # a look at thousands costs something
    found = pause_of(job)
    if found is None:
        _log_that_steps_are_made_again(job, members)
    elif job.log_wait_at is None and _is_due(job, found):
        if state.began is None:
            state.began = job.now - found.still_s
        most_s = job.options.wait_lines_s
        state.log_at = job.now + (LINE_PERIOD_S if found.waited_for else log_again_s(found.still_s, most_s))
        again = "" if found.waited_for else next_line_hint(found.still_s, most_s)
        log.info("%s; %s%s", found.text, what_follows(job, found), again)
    return NOTHING


def _is_due(job: JobState, found: StepPause) -> bool:
    """Whether to log it now. It is due soon if ranks wait that were busy at the last line."""
    state = job.pace
    if state.log_at is not None and found.waited_for:
        state.log_at = min(state.log_at, job.now + LINE_PERIOD_S)
    return state.log_at is None or job.now >= state.log_at


def _log_that_steps_are_made_again(job: JobState, members: tuple[Worker, ...]) -> None:
    state = job.pace
    newest = max(worker.moved_at for worker in members)
    if state.began is not None and newest > state.began:
        log.info("training goes on after %.0f s without a step", newest - state.began)
        state.began = state.log_at = None
