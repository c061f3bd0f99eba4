"""Processes of an earlier launcher's world that have ended while there was no launcher."""

from __future__ import annotations

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.ends import exited
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan


def plan(job: JobState) -> Plan:
    """Take in their ends, once that world was taken over."""
    ends = job.fleet.unreported_ends
    for life in [each for each in job.world.members if each in ends] if ends else ():
        worker, code = job.fleet.unreported_ends.pop(life)
        worker.unseen = True
        if life.seat not in job.roster.workers:
            job.roster.add(worker)
            exited(job, worker, {"code": code})
    return NOTHING
