"""Logs that a world makes no step, whom it waits for, and what follows if that lasts. It decides nothing."""

from __future__ import annotations

import logging

from hvd_elastic_ext.core.pace import EVERY_S, Lines
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.health.pace import next_line_hint
from hvd_elastic_ext.launcher.reporting.waits import WAIT
from hvd_elastic_ext.launcher.state.facts.pace import pause_of, what_follows
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


def plan(job: JobState) -> Plan:
    """Log a pause, unless another wait is logged.

    It returns no time for the next look, because a log line changes nothing else. In a job of thousands, with its
    longer times between looks, a pause is logged later.
    """
    state = job.pace
    members = job.roster.present(job.world.members)
    if not log.isEnabledFor(logging.INFO) or not members:
        state.since, state.lines = job.now, None
        return NOTHING  # a look at thousands costs something
    found = pause_of(job)
    if not job.settled:
        state.since = job.now
        if found is not None and not found.without_sign:
            state.lines = None
            return NOTHING
    if found is None:
        _log_that_steps_are_made_again(job, members)
    elif job.log_wait is None and found.is_told:
        if state.lines is None:
            state.lines = Lines(job.now - found.still_s, first_s=0.0)
        state.begins = found.without_sign
        most_s, why = EVERY_S if found.waited_for else job.options.wait_lines_s, "" if state.begins else found.who
        if state.lines.due(job.now, why, most_s=most_s):
            again = next_line_hint(state.lines.next_at(why, most_s=most_s) - job.now)
            log.info("%s; %s%s", found.text, what_follows(job, found), again, extra=WAIT)
    return NOTHING


def _log_that_steps_are_made_again(job: JobState, members: tuple[Worker, ...]) -> None:
    state = job.pace
    newest = max(worker.moved_at for worker in members)
    if state.lines is not None and newest > state.lines.since:
        how = "begins" if state.begins else "goes on"
        log.info("training %s after %.0f s without a step", how, newest - state.lines.since)
        state.lines = None
