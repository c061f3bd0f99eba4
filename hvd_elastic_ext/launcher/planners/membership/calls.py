"""Has processes that start, or are parked, catch up with the training call that the others are in."""

from __future__ import annotations

from hvd_elastic_ext.launcher.rules.membership.calls import Act
from hvd_elastic_ext.launcher.rules.membership.next_world import Stage
from hvd_elastic_ext.launcher.state.effects.membership import pasts
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan


def plan(job: JobState) -> Plan:
    """Tell parked processes of the results in their slots, and send results to slots that lack them."""
    pasts.look(job)
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
        elif not pasts.begin(job, standing.source, seat):
            again_at = job.calls.not_before
    return Plan(again_at)
