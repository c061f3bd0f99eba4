"""Which seats are wanted: slots of published hosts, without blocked hosts, departing hosts and surplus slots."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.endings import why_unjoined_failed
from hvd_elastic_ext.launcher.membership.hosts import follow_slots
from hvd_elastic_ext.launcher.rules.health.first_start import why_cannot_start
from hvd_elastic_ext.launcher.rules.membership import host_preference
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


SEPARATE: Final = (
    "no process asked for a world: {} programs have run, each by itself. If the script trains, each of them has "
    "trained a model of its own: call hvd.init() or elastic.init(); train in a function with @elastic.run if "
    "hvd_elastic_ext.torch is imported; or give --engine torchrun to a script that torchrun runs"
)


REFUSED: Final = ": exit code 2"
"""The end of a process whose script does not know an option: ``argparse``, and most programs, exit like that."""


def plan(job: JobState) -> Plan:
    """Find the wanted seats."""
    usable, with_notice = _usable(job), job.roster.agents_with_notice()
    go = with_notice.keys() | job.scaling.leaving
    staying = [(host, slots) for host, slots in usable if host.name not in go] if go else usable
    follow_slots(job, staying)
    job.wanted = host_preference.seats(staying, job.options.limits, job.roster.taken, job.roster.commits.newest_hosts)
    return NOTHING


def check_start(job: JobState) -> Plan:
    """Before the first world: end the job if programs that need no world are done, or if no process can start."""
    if job.world.begun or job.world.members:
        return NOTHING
    wanted, hosts = job.wanted, job.fleet.hosts
    if wanted and job.loopless.done_unjoined >= set(wanted):
        every = job.options.limits.size(hosts.slots, begun=True)
        job.fail(_unjoined_failed(job, wanted=every))
        job.outcome.finishing = job.outcome.failure is None
        if job.outcome.finishing and len(wanted) > 1:
            log.warning("%s", SEPARATE.format(len(wanted)))
    elif wanted or job.roster.agents_with_notice() or job.faults.first is None or not hosts:
        return NOTHING
    elif not (job.options.woken or job.has_trained):  # such a job sleeps on, or waits for hosts
        why = why_cannot_start(job.now, hosts.hosts, job.faults.ledger, fixed=job.options.fixed_hosts)
        if why is not None:
            hint = job.options.misplaced if job.faults.first.endswith(REFUSED) else None
            job.fail(
                JobFailed("; ".join(filter(None, (f"no process started training: {job.faults.first}", why, hint))))
            )
    return NOTHING


def _usable(job: JobState) -> list[tuple[Host, tuple[int, ...]]]:
    """Each host's slots that may work.

    Once training has begun, and if no slot is left, the block of one host is ended.
    """
    if (again := job.lift_one_block()) is not None:
        job.note_lifted(again)
    return job.faults.usable(job.fleet.hosts, job.now)


def _unjoined_failed(job: JobState, *, wanted: int) -> JobFailed | None:
    """Why a program that needs no world has failed on the published hosts; None if it has not. ``wanted``: the
    number of processes that have to end well.
    """
    hosts = set(job.fleet.hosts.names)
    why = why_unjoined_failed(
        [end for seat, end in job.loopless.never_joined.items() if seat.host in hosts], wanted=wanted
    )
    return None if why is None else JobFailed(why)
