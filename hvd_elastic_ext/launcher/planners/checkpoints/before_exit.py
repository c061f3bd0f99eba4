"""A job that has to end makes a last checkpoint first, within a time limit."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import save_before
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.state.facts.checkpoints import last_checkpoint_until, members, newest_step, trains
from hvd_elastic_ext.launcher.state.facts.memory import next_look
from hvd_elastic_ext.launcher.state.parts.checkpoints import COMMIT_S
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)

NO_COMMIT: Final = "the script has made no commit since (state.commit())"
"""Why steps are lost although the last commit is saved."""


def plan(job: JobState) -> Plan:
    """End a job that has to end, once all is saved or the time is over."""
    part = job.before_exit
    if part.why is None or job.outcome.failure is not None:
        return NOTHING
    _end_newcomers(job)
    part.reached = max(part.reached, newest_step(job))
    until = last_checkpoint_until(job)
    # A world of an earlier launcher may be complete only now.
    saving = job.checkpoints.asked or not job.standing or attempt.request(job)
    if saving and job.now < until:
        stops_at = _stops_at(job)
        if job.now < stops_at:
            return Plan(min(stops_at, until))
        _stop_training(job)
        return Plan(until)
    if saving:
        lost = newest_step(job) - job.checkpoints.last.step
        what = f"{lost} steps since the newest one are lost" if lost > 0 else "what was trained since then is lost"
        log.warning("no last checkpoint in %g s; %s", until - part.since, what)
        part.lacks = f"no last checkpoint was complete in {until - part.since:g} s"
    job.fail(part.why)
    return NOTHING


def _end_newcomers(job: JobState) -> None:
    """End processes that are not in the world: their imports would take the CPU from the last checkpoint."""
    inside = set(job.world.members)
    for worker in job.roster.workers.values():
        if worker.life not in inside and worker.stage is not Stage.LIVE and worker.killed is None:
            orders.end(job, worker)


def _stops_at(job: JobState) -> float:
    """When a world that has not reached its next commit is ended (mono)."""
    part, attempt = job.before_exit, job.checkpoints.attempt
    if not (job.in_place or trains(job)):
        return job.now  # its processes are new: the commit from which it would continue is in memory
    if attempt is not None and not (attempt.stay or attempt.at_rest):
        part.commit_by = job.now + COMMIT_S  # an older one is completed first
    return part.commit_by


def _stop_training(job: JobState) -> None:
    """End a world that does not reach its next commit, perhaps because it hangs. Its last commit is in memory, and
    is saved.
    """
    attempt = job.checkpoints.attempt
    if job.standing and (attempt is None or len(attempt.kept) < len(attempt.ranks)):
        going = [worker for worker in members(job) if worker.killed is None]
        if going:
            log.warning("%s: the processes are ended, and the last commit is saved", _why_stopped(job))
            if job.settled and (job.in_place or trains(job)):
                job.before_exit.lacks = NO_COMMIT
        for worker in going:
            orders.kill(job, worker, Cause.TOLD)


def _why_stopped(job: JobState) -> str:
    if not job.settled:
        return "the world changes"
    if job.in_place or trains(job):
        return f"no commit in {job.now - job.before_exit.since:.0f} s"
    return "no step is made yet"


def save(job: JobState) -> Plan:
    """Save the commit in memory if the job does not train; form no other world."""
    why = job.before_exit.why
    if why is None or job.standing:
        return NOTHING
    attempt.training_stopped(job, "the world is lost")
    if save_before(job, short=str(why), skip_waiting=True, read_back=False) is not None:
        job.fail(why)
    return Plan(next_look(job), stop=True)
