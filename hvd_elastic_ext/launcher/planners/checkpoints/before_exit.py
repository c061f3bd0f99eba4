"""A job that is told to end makes a last checkpoint first, within a time limit."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.state import orders
from hvd_elastic_ext.launcher.state.checkpoints import LAST_CHECKPOINT_S
from hvd_elastic_ext.launcher.state.effects.checkpoints import attempts
from hvd_elastic_ext.launcher.state.effects.checkpoints.memory import save_before
from hvd_elastic_ext.launcher.state.facts.checkpoints import members, newest_step
from hvd_elastic_ext.launcher.state.facts.memory import next_look
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan

log = logging.getLogger(__name__)

MEMORY_S: Final = LAST_CHECKPOINT_S / 2
"""What is left of the time when a commit that does not come is waited for no more: the one in memory is saved."""


def plan(job: JobState) -> Plan:
    """End a job that was told to end, once all is saved or the time is over."""
    part = job.before_exit
    if part.why is None or part.until is None or job.outcome.failure is not None:
        return NOTHING
    saving = job.checkpoints.asked or not job.standing
    stops_at = part.until - MEMORY_S
    if saving and job.now < part.until:
        if job.now < stops_at:
            return Plan(stops_at)
        _stop_training(job)
        return Plan(part.until)
    if saving:
        lost = newest_step(job) - job.checkpoints.last.step
        what = f"{lost} steps since the newest one are lost" if lost > 0 else "what was trained since then is lost"
        log.warning("no last checkpoint in %g s; %s", LAST_CHECKPOINT_S, what)
    job.fail(part.why)
    return NOTHING


def _stop_training(job: JobState) -> None:
    """End a world that does not come to the next commit, as one that hangs: its last one is in memory, and is saved."""
    attempt = job.checkpoints.attempt
    if job.standing and (attempt is None or len(attempt.kept) < len(attempt.ranks)):
        going = [worker for worker in members(job) if worker.killed is None]
        if going:
            log.warning("no commit in %g s: the processes are ended, and the last commit is saved", MEMORY_S)
        for worker in going:
            orders.kill(job, worker, Cause.TOLD)


def save(job: JobState) -> Plan:
    """Save the commit in memory if the job does not train; form no other world."""
    why = job.before_exit.why
    if why is None or job.standing:
        return NOTHING
    attempts.training_stopped(job, "the world is lost")
    if save_before(job, short=str(why), skip_waiting=True) is not None:
        job.fail(why)
    return Plan(next_look(job), stop=True)
