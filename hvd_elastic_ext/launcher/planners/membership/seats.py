"""Which seats are wanted: slots of published hosts, without blocked hosts, departing hosts and surplus slots."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.rules.health.endings import alone
from hvd_elastic_ext.launcher.rules.membership import next_world
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan

log = logging.getLogger(__name__)

SEPARATE: Final = (
    "no process asked for a world: {} programs have run, each by itself. If the script trains, it has trained as many "
    "models: call hvd.init() or elastic.init(), or give --engine torchrun to a script that torchrun runs"
)


def plan(job: JobState) -> Plan:
    """Find the wanted seats."""
    usable, going = _usable(job), job.roster.going()
    staying = [(host, slots) for host, slots in usable if host.name not in going]
    job.wanted = next_world.seats(staying, job.options.limits, job.roster.taken, job.roster.commits.newest_hosts)
    return NOTHING


def check_start(job: JobState) -> Plan:
    """Before the first world: end the job if programs that need no world are done, or if no process can start."""
    if job.world.begun or job.world.members:
        return NOTHING
    wanted, hosts = job.wanted, job.fleet.hosts
    if wanted and job.loopless.done_alone >= set(wanted):
        every = job.options.limits.size(hosts.slots, begun=True)
        job.fail(_failed_alone(job, wanted=every))
        job.outcome.finishing = job.outcome.failure is None
        if job.outcome.finishing and len(wanted) > 1:
            log.warning("%s", SEPARATE.format(len(wanted)))
    elif wanted or job.roster.going() or job.faults.first is None or not hosts:
        return NOTHING
    elif not (job.options.woken or job.has_trained):  # such a job sleeps on, or waits for hosts
        job.fail(JobFailed(f"no process started training: {job.faults.first}"))
    return NOTHING


def _usable(job: JobState) -> list[tuple[Host, tuple[int, ...]]]:
    """Each host's slots that may work.

    Once training has begun, and if no slot is left, blocks of holders of the newest commit are lifted first.
    """
    state, hosts, now = job.faults, job.fleet.hosts, job.now
    usable = state.usable(hosts, now)
    works = any(worker.killed is None for worker in job.roster.workers.values())
    if not hosts or not job.world.begun or works or any(slots for _, slots in usable):
        return usable
    candidates = [(host, job.roster.commits.of_host(host.name)) for host in hosts]
    state.ledger, host, reason = state.ledger.lift_one_block(now, candidates)
    if host is None:
        return usable
    log.warning("%s: its block is lifted", reason)
    job.save()
    return state.usable(hosts, now)


def _failed_alone(job: JobState, *, wanted: int) -> JobFailed | None:
    """Why a program that needs no world has failed on hosts that are published, ``wanted`` of which were to end well;
    None if it has not.
    """
    hosts = set(job.fleet.hosts.names)
    why = alone([end for seat, end in job.loopless.alone.items() if seat.host in hosts], wanted=wanted)
    return None if why is None else JobFailed(why)
