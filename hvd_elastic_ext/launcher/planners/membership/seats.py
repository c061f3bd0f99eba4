"""Which seats are to work: slots of published hosts, without those that are blocked, about to go, or too many."""

from __future__ import annotations

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.planners.health import blame, loopless
from hvd_elastic_ext.launcher.rules.membership import membership
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan


def plan(job: JobState) -> Plan:
    """Find the seats that are to work."""
    usable, going = blame.usable(job, job.fleet.hosts, forgive=job.world.begun), job.roster.going()
    staying = [(name, slots) for name, slots in usable if name not in going]
    job.wanted = membership.seats(staying, job.rules.limits, job.roster.taken(), job.roster.holders())
    return NOTHING


def see_what_never_begins(job: JobState) -> Plan:
    """Before there was a world: programs that need none may be done, and if nobody is left there will be none."""
    if job.world.begun or job.world.members:
        return NOTHING
    wanted, hosts = job.wanted, job.fleet.hosts
    if wanted and loopless.done_alone(job) >= set(wanted):
        every = job.rules.limits.size(hosts.slots, begun=True)
        job.fail(loopless.failed_alone(job, hosts.names, wanted=every))
        job.outcome.finishing = job.outcome.failure is None
    elif wanted or job.roster.going() or job.faults.first is None or not hosts:
        return NOTHING
    elif not (job.rules.woken or job.has_trained):  # else it sleeps on, or waits for hosts
        job.fail(JobFailed(f"no process has come as far as training: {job.faults.first}"))
    return NOTHING
