"""Starts and stops transfers of the newest commit, as custody wants them."""

from __future__ import annotations

from hvd_elastic_ext.launcher.custody import transfers
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan


def time_out(job: JobState) -> Plan:
    """Give up a transfer that takes too long."""
    transfers.time_out(job)
    return NOTHING


def plan(job: JobState) -> Plan:
    """Do what the decision on the next world wants; forget agents that would not end any more."""
    part = job.custody
    part.may_end_since = {host: at for host, at in part.may_end_since.items() if host in part.asked_for}
    part.asked_for.clear()
    if part.needs_none:
        transfers.cancel(job)
    else:
        transfers.begin(job, part.decision)
    return NOTHING
