"""Which processes learn by ``check_alive()`` that they will be preempted, and may save their state.

If others continue, the call to the next world tells a process that it leaves. This is for jobs without a next world
yet: all train until the hosts are gone, since other hosts may come.
"""

from __future__ import annotations

import math

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.rules.membership.preemption import SAVE_S, reclaimed
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan


def plan(job: JobState) -> Plan:
    """Tell processes that their host, or the whole job, is about to be preempted, or is not any more."""
    state = job.preemption
    leaves_by = job.leaves_by
    present = job.roster.present(job.world.members) if leaves_by or state.open else []
    state.all_by = None
    if not present:
        return NOTHING
    state.open = bool(leaves_by)
    enough = job.options.limits.size(len(job.wanted), begun=True) > 0
    going = [by for host, by in leaves_by.items() if job.roster.on(host)]
    state.all_by = min(going) if going and not enough else None
    affected = reclaimed(job.world.members, leaves_by, now=job.now, enough=enough)
    for leaving in (True, False):
        to_notify = [
            worker for worker in present if worker.reclaimed is not leaving and (worker.life in affected) is leaving
        ]
        job.tell_all(to_notify, "reclaim", leaving=leaving)
        for worker in to_notify:
            worker.reclaimed = leaving
    times = [by - SAVE_S for by in leaves_by.values()]
    return Plan(min((at for at in times if job.now < at < math.inf), default=None))
