"""Cooldowns of hosts and slots that are blamed."""

from __future__ import annotations

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan


def plan(job: JobState) -> Plan:
    """Look again when the next cooldown is over."""
    return Plan(job.faults.ledger.next_release(job.now))


def retry(job: JobState) -> Plan:
    """Before the first world, end the cooldowns of slots without which it cannot form, once a process is ready.

    Until then the script may fail everywhere, and another start would only delay the message.
    """
    state = job.faults
    if state.to_retry and job.world.begun:
        state.to_retry.clear()
    if not state.to_retry or all(worker.stage is Stage.BOOTING for worker in job.roster.workers.values()):
        return NOTHING
    for seat in sorted(state.to_retry):
        host = job.fleet.hosts.get(seat.host)
        blocked = host is not None and state.ledger.blocked(job.now, host, seat.slot).blocked
        if host is not None and blocked and (found := job.waived(host, seat.slot)) is not None:
            job.note_lifted(found)
    state.to_retry.clear()
    return NOTHING
