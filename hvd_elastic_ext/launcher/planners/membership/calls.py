"""Has processes catch up with the training call that the others are in: those that start, are parked, or are started
again for that."""

from __future__ import annotations

from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership import calls
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.rules.membership.calls import Act, behind
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan


def plan(job: JobState) -> Plan:
    """Tell parked processes of the results in their slots, send results to slots that lack them, and end processes that
    have rolled back in a call that others have ended: the next ones in their slots catch up.
    """
    calls.look(job)
    _end_those_behind(job)
    if (gate := job.gate) is None:
        return NOTHING
    again_at = None
    for seat, standing in gate.standings.items():
        if standing.act is not Act.CATCHES_UP or standing.source is None:
            continue
        worker = job.roster.workers[seat]
        if standing.source == seat:
            # It goes on by itself, and parks again; until then it is not ready.
            worker.stage, worker.since, worker.told_in = Stage.BOOTING, job.now, worker.call
            job.tell(worker, "results")
        elif not calls.begin(job, standing.source, seat):
            again_at = job.calls.not_before
    return Plan(again_at)


def _end_those_behind(job: JobState) -> None:
    if job.calls.newest <= 1 or not job.in_place or not job.rendezvous.waiting:
        return  # the usual case
    waiting = {life.seat for life in job.rendezvous.waiting}
    for seat, why in behind(job.in_calls, waiting, job.calls.refused).items():
        worker = job.roster.workers[seat]
        worker.behind = why
        job.world.behind[worker.life] = why
        job.world.not_at_fault.add(worker.life)
        orders.kill(job, worker, Cause.BEHIND)
