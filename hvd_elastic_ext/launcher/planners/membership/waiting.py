"""Says what a job that does not train waits for. It decides nothing."""

from __future__ import annotations

from hvd_elastic_ext.launcher.state.facts.waits import SAY_S, say, waits_for
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan


def plan(job: JobState) -> Plan:
    """Say what the last look left the job waiting for, at first after :data:`SAY_S`."""
    wait = waits_for(job)
    if wait is None:
        job.log_wait_at = None
        return NOTHING
    lasts = wait.since is not None and job.now - wait.since >= SAY_S
    due = lasts if job.log_wait_at is None else job.now >= job.log_wait_at
    if due:
        say(wait, job.now)
    if due or job.log_wait_at is None:
        job.log_wait_at = job.now + SAY_S
    return Plan(job.log_wait_at)
