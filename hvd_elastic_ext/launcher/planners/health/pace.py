"""Logs that a world makes no step, whom it waits for, and what follows if that lasts. It decides nothing."""

from __future__ import annotations

import logging

from hvd_elastic_ext.launcher.rules.health.pace import StepPause, log_again_s, said_again
from hvd_elastic_ext.launcher.state.facts.health import finished_limit_s, stall_limit_s
from hvd_elastic_ext.launcher.state.facts.pace import SILENT_S, pause_of
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Worker

log = logging.getLogger(__name__)


def plan(job: JobState) -> Plan:
    """Log a pause, unless another wait is logged.

    It names no time for the next look: what is only logged changes nothing else. In a job of thousands, with its longer
    times between looks, a pause is logged later.
    """
    state = job.pace
    members = job.roster.present(job.world.members)
    if not members or not job.settled:
        state.since, state.began, state.log_at = job.now, None, None
        return NOTHING
    found = pause_of(job)
    if found is None:
        _log_that_steps_are_made_again(job, members)
    elif job.log_wait_at is None and (state.log_at is None or job.now >= state.log_at):
        if state.began is None:
            state.began = job.now - found.still_s
        state.log_at = job.now + log_again_s(found.still_s)
        log.info("%s; %s%s", found.text, _what_follows(job, found), said_again(found.still_s))
    return NOTHING


def _log_that_steps_are_made_again(job: JobState, members: tuple[Worker, ...]) -> None:
    state = job.pace
    newest = max(worker.moved_at for worker in members)
    if state.began is not None and newest > state.began:
        log.info("training goes on after %.0f s without a step", newest - state.began)
        state.began = state.log_at = None


def _what_follows(job: JobState, found: StepPause) -> str:
    options = job.options
    workers = [worker for member in found.lag if (worker := job.roster.alive(member.life)) is not None]
    if found.waiting and (silent := [str(worker.seat) for worker in workers if worker.silent_s >= SILENT_S]):
        limit_s = options.heartbeat_timeout_s
        return f"no heartbeat from {', '.join(silent)}: failed after {limit_s:g} s (--heartbeat-timeout)"
    if job.liveness.reported is not None:
        return "reported as stalled"
    if found.finished and not found.lag:
        return f"reported as stalled after {finished_limit_s(job):g} s"
    if options.progress_timeout_s is None:
        limit = f"after {stall_limit_s(job):.0f} s" if found.waiting else "with --progress-timeout only"
        return f"reported as stalled {limit}"
    then = "ended and started again" if options.restart_stalled and found.lag else "reported as stalled"
    return f"{then} after {options.progress_timeout_s:g} s (--progress-timeout)"
