"""Which seats are wanted: slots of published hosts, without blocked hosts, departing hosts and surplus slots."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.planners.health import blame, loopless
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
    usable, going = blame.usable(job, job.fleet.hosts, forgive=job.world.begun), job.roster.going()
    staying = [(host, slots) for host, slots in usable if host.name not in going]
    job.wanted = next_world.seats(staying, job.options.limits, job.roster.taken, job.roster.commits.newest_hosts)
    return NOTHING


def check_start(job: JobState) -> Plan:
    """Before the first world: end the job if programs that need no world are done, or if no process can start."""
    if job.world.begun or job.world.members:
        return NOTHING
    wanted, hosts = job.wanted, job.fleet.hosts
    if wanted and loopless.done_alone(job) >= set(wanted):
        every = job.options.limits.size(hosts.slots, begun=True)
        job.fail(loopless.failed_alone(job, hosts.names, wanted=every))
        job.outcome.finishing = job.outcome.failure is None
        if job.outcome.finishing and len(wanted) > 1:
            log.warning("%s", SEPARATE.format(len(wanted)))
    elif wanted or job.roster.going() or job.faults.first is None or not hosts:
        return NOTHING
    elif not (job.options.woken or job.has_trained):  # such a job sleeps on, or waits for hosts
        job.fail(JobFailed(f"no process started training: {job.faults.first}"))
    return NOTHING
