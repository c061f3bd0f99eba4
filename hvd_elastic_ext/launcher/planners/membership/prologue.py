"""Decides where processes that wait in ``hvd.init()`` meet the others: there, or in the training loop."""

from __future__ import annotations

from hvd_elastic_ext.launcher.rules.membership.next_world import Stage
from hvd_elastic_ext.launcher.rules.membership.prologue import Meeting, Where, decide
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Worker


def plan(job: JobState) -> Plan:
    """Make them ready, have them wait, or send them on alone."""
    here = [each for each in job.roster.unusual if each.at_init and each.stage is not Stage.LIVE]
    here = [each for each in here if each.killed is None and each.leaving is None]
    if not here:
        return NOTHING  # the usual case, and there may be thousands
    waiting = frozenset(map(id, here))
    living = [each for each in job.roster.workers.values() if each.killed is None and id(each) not in waiting]
    meeting = decide(_where(job, each) for each in living)
    for worker in here:
        if meeting is Meeting.READY and worker.stage is Stage.BOOTING:
            worker.stage, worker.since = Stage.PARKED, job.now
            job.record("parked", host=worker.seat.host, slot=worker.seat.slot)
        elif meeting is Meeting.WAIT and worker.stage is Stage.PARKED:  # a world has formed without it
            worker.stage, worker.since = Stage.BOOTING, job.now
        elif meeting is Meeting.ALONE:
            worker.stage, worker.since = Stage.BOOTING, job.now
            worker.at_init, worker.alone = False, True
    if meeting is Meeting.ALONE:
        job.tell_all(here, "alone")
    return NOTHING


def _where(job: JobState, worker: Worker) -> Where:
    """Where a living process is. Members of a world that has not formed yet are in ``hvd.init()``."""
    if worker.alone or worker.loops:
        return Where.APART
    called_only = worker.generation == 0 and (worker.rank is None or worker.life in job.rendezvous.waiting)
    return Where.INIT if worker.stage is not Stage.LIVE or called_only else Where.PROLOGUE
