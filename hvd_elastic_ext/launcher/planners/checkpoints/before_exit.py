"""A job that is told to end makes a last checkpoint first, within a time limit."""

from __future__ import annotations

import logging

from hvd_elastic_ext.launcher.state.checkpoints import LAST_CHECKPOINT_S
from hvd_elastic_ext.launcher.state.effects.checkpoints import attempts
from hvd_elastic_ext.launcher.state.effects.checkpoints.memory import save_before
from hvd_elastic_ext.launcher.state.facts.memory import next_look
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan

log = logging.getLogger(__name__)


def plan(job: JobState) -> Plan:
    """End a job that was told to end, once all is saved or the time is over."""
    part = job.before_exit
    if part.why is None or part.until is None or job.outcome.failure is not None:
        return NOTHING
    saving = job.checkpoints.asked or not job.standing
    if saving and job.now < part.until:
        return Plan(part.until)
    if saving:
        log.warning("no last checkpoint in %g s; what was trained since the newest one is lost", LAST_CHECKPOINT_S)
    job.fail(part.why)
    return NOTHING


def save(job: JobState) -> Plan:
    """Save the commit in memory if the job does not train; form no other world."""
    why = job.before_exit.why
    if why is None or job.standing:
        return NOTHING
    attempts.training_stopped(job, "the world is lost")
    if save_before(job, short=str(why), skip_waiting=True) is not None:
        job.fail(why)
    return Plan(next_look(job), stop=True)
