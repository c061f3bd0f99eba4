"""Reports ranks that wait for a finished rank, or train on without it."""

from __future__ import annotations

import logging
from collections.abc import Container

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.health.stalls import Member, ended_early
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId

log = logging.getLogger(__name__)


def ended(job: JobState, worker: Worker, *, well: bool) -> None:
    """A process has ended. Others may wait for ever for one that ended ``well``."""
    place = job.rendezvous.place(worker.life)
    if not worker.done:
        job.liveness.of_world(job.generation).pop(worker.life, None)  # it was in its next training call
    if well and place is not None and worker.life in job.world.members:
        job.liveness.of_world(job.generation)[worker.life] = finished(job, worker, place.rank)
    if (base := job.outcome.went_on.get(worker.life)) is not None:
        job.outcome.more[worker.seat] = max(0, worker.step - base)


def finished(job: JobState, worker: Worker, rank: int) -> Member:
    """The record of a process that is done with training, or has ended with 0.

    Without a State of ours its steps are not those of the script: Horovod does some of its own.
    """
    return Member(worker.life, rank, job.now, done=worker.done, step=0 if worker.every is None else worker.step)


def others_continue(job: JobState, next_members: Container[ProcessId]) -> None:
    """Another world is about to form: log it if members of the last one are done with training."""
    outcome, found = job.outcome, job.liveness.of_world(job.generation)
    if not found and not any(worker.done for worker in job.roster.workers.values()):
        return
    others = []
    for worker in job.roster.present(job.world.members):
        if worker.done and (place := job.rendezvous.place(worker.life)) is not None:
            found.setdefault(worker.life, finished(job, worker, place.rank))
        else:
            found.pop(worker.life, None)  # a script may train more than once
        if not worker.done and worker.life in next_members:
            others.append(worker)
    done = sorted((each for each in found.values() if each.done), key=lambda each: each.rank)
    if not done or not others or outcome.failure is not None:
        return
    log.warning("%s", ended_early(done, [worker.seat for worker in others]))
    outcome.early += tuple(done)
    ends_at = max(each.step for each in done)
    for (
        worker
    ) in others:  # a State of ours counts steps from the start of training; without it each process counts its own
        outcome.went_on[worker.life] = ends_at if ends_at and worker.every is not None else worker.step
