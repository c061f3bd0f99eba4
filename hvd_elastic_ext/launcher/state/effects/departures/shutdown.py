"""The job has to end, and the answers of hosts that have no connection."""

from __future__ import annotations

import logging

from hvd_elastic_ext.core.errors import Interrupted, JobFailed
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.state.parts.checkpoints import COMMIT_S

log = logging.getLogger(__name__)


def end(job: JobState, why: JobFailed) -> None:
    """End everything; the first ``why`` is the outcome. A second call ends it at once.

    A job that is ended from outside makes a last checkpoint first.
    """
    state = job.shutdown
    if not job.ending and _waits_for_checkpoint(job, why):
        return
    if job.outcome.failure is None:
        job.outcome.failure = why
        return
    for worker in job.roster.workers.values():
        orders.kill(job, worker, Cause.TOLD)
    state.skip_waiting = True  # do not wait for missing hosts; after another call, wait for no host
    if state.gone_by is not None:
        state.gone_by = job.now


def answered(job: JobState, host: str, *, well: bool, why: str) -> None:
    """The result of ending a host without a connection."""
    state = job.shutdown
    state.pending.discard(host)
    if well:
        state.unconnected.pop(host, None)
    elif host in state.unconnected:
        state.refused[host] = external_text(why)
        log.warning("%s could not be told to end: %s", host, why)


def agent_joined(job: JobState, host: str) -> None:
    """An agent of such a host has connected."""
    state = job.shutdown
    state.pending.discard(host)
    state.unconnected.pop(host, None)


def _waits_for_checkpoint(job: JobState, why: JobFailed) -> bool:
    """Whether the end has to wait for a checkpoint. A second request does not wait."""
    if job.before_exit.why is not None or not isinstance(why, Interrupted) or not _anything_to_save(job):
        return False
    part = job.before_exit
    part.why, part.since, part.commit_by = why, job.now, job.now + COMMIT_S
    attempt.drop_older_attempt(job)
    return True


def _anything_to_save(job: JobState) -> bool:
    if job.roster.commits.newest is None and not job.settled:
        return False  # the world has not agreed on its first state yet
    at_rest = job.options.durability is not None and not job.standing
    return attempt.request(job) or (at_rest and bool(job.roster.commits.held))  # also of a host that may come back
