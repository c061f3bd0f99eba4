"""Processes that end because a peer of their world was lost: no fault of theirs.

A peer's connections close before its process has ended, and hosts report at different speed: so the end of a victim
may come before the end of its cause.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.health.causes import Cause, Evidence, evidence
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId
from hvd_elastic_ext.launcher.state.parts.health import Unexplained

GRACE_S: Final = 5.0
"""How long the end of the cause may come after that of a victim: its interpreter has to shut down, on a busy
machine."""


def is_victim(job: JobState, worker: Worker, cause: Cause, how: str, *, code: int) -> bool:
    """Whether a process that has ended is taken for a victim, as far as known; :func:`explained` may find later that
    it is none.
    """
    members = job.world.members
    if not job.in_place or not cause.fault or worker.life not in members or worker.killed is not None:
        return False
    lost = worker.lost_peer is not None
    found = evidence(code, cause, error=worker.failure is not None, lost_peer=lost)
    if found is Evidence.OWN:
        return False
    if worker.generation < job.generation:  # it may still be in the world before, and have lost others there
        members = (*members, *job.world.left_out)
    if found is Evidence.UNCLEAR:
        without = {worker.life, *(each.worker.life for each in job.faults.unexplained)}
        without |= {life for life, end in job.loopless.ended.items() if end.well} | job.fleet.unreported_ends.keys()
        return explained(job, members, without=without)
    job.faults.unexplained.append(Unexplained(worker, how, code, members, job.generation, job.now + GRACE_S))
    return True


def follows_another(job: JobState, worker: Worker) -> bool:
    """Whether a process has reported that an operation with its peers has failed, and its world has lost a member by
    something else.
    """
    without = {worker.life, *(each.worker.life for each in job.faults.unexplained)}
    return worker.lost_peer is not None and explained(job, job.world.members, without=without)


def explained(job: JobState, members: tuple[ProcessId, ...], *, without: Container[ProcessId]) -> bool:
    """Whether a member other than ``without`` is lost, is killed, or has reported an error of its own."""
    for life in members:
        if life in without:
            continue
        other = job.roster.alive(life)
        if other is None or other.killed is not None or (other.failure is not None and other.lost_peer is None):
            return True
    return False
