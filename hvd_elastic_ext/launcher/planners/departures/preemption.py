"""Which processes are to see by ``check_alive()`` that they are about to be taken away, and may save what they have.

Where others go on, whoever leaves is told when the next world is called. This is for where there is none to call yet:
all train on then until the hosts are gone, since others may come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan

SAVE_S: Final = 30.0
"""So long before its host is gone a process is told, though others are on their way: all that some clouds leave."""


def reclaimed(
    members: Collection[Life], leaves_by: Mapping[str, float], *, now: float, enough: bool
) -> frozenset[Life]:
    """Of ``members`` those that are to save what they have. Pure.

    ``leaves_by``: hosts that are about to go, and when that will be (mono). If what stays, or is
    to come, is not ``enough`` to go on, all are: the job is below its minimum.
    """
    leaving = frozenset(life for life in members if life.seat.host in leaves_by)
    if leaving and not enough:
        return frozenset(members)
    return frozenset(life for life in leaving if leaves_by[life.seat.host] - now <= SAVE_S)


def plan(job: JobState) -> Plan:
    """Tell processes that their host, or the whole job, is about to be taken away, and take it back."""
    state = job.preemption
    leaves_by = job.leaves_by
    present = job.roster.present(job.world.members) if leaves_by or state.open else []
    state.all_by = None
    if not present:
        return NOTHING
    state.open = bool(leaves_by)
    enough = job.rules.limits.size(len(job.wanted), begun=True) > 0
    going = [by for host, by in leaves_by.items() if job.roster.on(host)]
    state.all_by = min(going) if going and not enough else None
    told = reclaimed(job.world.members, leaves_by, now=job.now, enough=enough)
    for leaving in (True, False):
        news = [worker for worker in present if worker.reclaimed is not leaving and (worker.life in told) is leaving]
        job.tell_all(news, "reclaim", leaving=leaving)
        for worker in news:
            worker.reclaimed = leaving
    return NOTHING
