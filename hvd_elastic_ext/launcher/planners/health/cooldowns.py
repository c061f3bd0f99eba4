"""Cooldowns of hosts and slots that are blamed."""

from __future__ import annotations

from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.planner_answer import Plan


def plan(job: JobState) -> Plan:
    """Look again when the next cooldown is over."""
    return Plan(job.faults.ledger.next_release(job.now))
