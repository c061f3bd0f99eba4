"""A job that is told to end makes a last checkpoint first, within a time limit."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.core.errors import Interrupted, JobFailed
from hvd_elastic_ext.launcher.planners.checkpoints import before_sleep, coordinator
from hvd_elastic_ext.launcher.state.facts import memory
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan

log = logging.getLogger(__name__)

LAST_CHECKPOINT_S: Final = 20.0
"""Longest time for the last checkpoint: pods have 30 s in all."""


def hold(job: JobState, why: JobFailed) -> bool:
    """Whether the end has to wait for a checkpoint. A second request does not wait."""
    if job.before_exit.why is not None or not isinstance(why, Interrupted) or not _anything_to_save(job):
        return False
    job.before_exit.why, job.before_exit.until = why, job.now + LAST_CHECKPOINT_S
    return True


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
    coordinator.training_stopped(job, "the world is lost")
    if before_sleep.save_before(job, short=str(why), skip_waiting=True) is not None:
        job.fail(why)
    return Plan(memory.next_look(job), stop=True)


def _anything_to_save(job: JobState) -> bool:
    at_rest = job.options.durability is not None and not job.standing
    return coordinator.request(job) or (at_rest and bool(job.roster.commits.newest_hosts()))
