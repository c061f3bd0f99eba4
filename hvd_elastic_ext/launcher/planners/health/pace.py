"""Says that a world makes no step, whom it waits for, and what follows if that lasts. It decides nothing."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.launcher.planners.health import liveness
from hvd_elastic_ext.launcher.rules.health.pace import SOON_S, Pause, pause, say_again_s
from hvd_elastic_ext.launcher.rules.health.stalls import Member
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Worker

log = logging.getLogger(__name__)

SILENT_S: Final = 1.9
"""A process without a heartbeat for this time, which is almost two, may hang, whatever its last one said."""
KNOWN_S: Final = 1.2
"""How long a heartbeat of its agent tells of no progress: until the next one is due."""


def plan(job: JobState) -> Plan:
    """Say a pause, unless another wait is said.

    It names no time for the next look: what is only said changes nothing else. In a job of thousands, with its longer
    times between looks, a pause is said later.
    """
    state = job.pace
    members = job.roster.present(job.world.members)
    if not members or not job.settled:
        state.since, state.began, state.say_at = job.now, None, None
        return NOTHING
    found = pause_of(job)
    if found is None:
        _say_that_it_goes_on(job, members)
    elif job.say_at is None and (state.say_at is None or job.now >= state.say_at):
        if state.began is None:
            state.began = job.now - found.still_s
        state.say_at = job.now + say_again_s(found.still_s)
        log.info("%s; %s", found.text, _what_follows(job, found))
    return NOTHING


def pause_of(job: JobState) -> Pause | None:
    """The pause of the world at this moment; None while it makes steps as usual."""
    present = job.roster.present(job.world.members)
    watched = [
        worker
        for worker in present
        if worker.killed is None and not worker.done and (worker.progress or worker.waiting)  # else it reports none
    ]
    if any(_still_s(job, worker) < SOON_S for worker in watched):
        return None  # as a rule the first one: a look at a world that trains costs nothing
    members = [_member(job, worker) for worker in watched]
    finished = [_member(job, worker) for worker in present if worker.done]
    return pause(job.now, members, (worker.steps_s for worker in watched), finished)


def _member(job: JobState, worker: Worker) -> Member:
    place = job.rendezvous.place(worker.life)
    waiting = worker.waiting and worker.silent_s < SILENT_S
    return Member(worker.life, -1 if place is None else place.rank, job.now - _still_s(job, worker), waiting)


def launcher_paused(job: JobState, seconds: float) -> None:
    """The launcher itself was paused for ``seconds``: heartbeats of that time are not read yet."""
    for worker in job.roster.workers.values():
        worker.moved_at = min(job.now, worker.moved_at + seconds) if worker.moved_at else 0.0


def _still_s(job: JobState, worker: Worker) -> float:
    """For how long it has made no progress. Without heartbeats of its agent nothing is known."""
    if worker.in_heartbeat_at is None:
        return 0.0
    return min(job.now, worker.in_heartbeat_at + KNOWN_S) - max(worker.moved_at, job.pace.since)


def _say_that_it_goes_on(job: JobState, members: tuple[Worker, ...]) -> None:
    state = job.pace
    newest = max(worker.moved_at for worker in members)
    if state.began is not None and newest > state.began:
        log.info("training goes on after %.0f s without a step", newest - state.began)
        state.began = state.say_at = None


def _what_follows(job: JobState, found: Pause) -> str:
    options = job.options
    workers = [worker for member in found.lag if (worker := job.roster.alive(member.life)) is not None]
    if found.waiting and (silent := [str(worker.seat) for worker in workers if worker.silent_s >= SILENT_S]):
        limit_s = options.heartbeat_timeout_s
        return f"no heartbeat from {', '.join(silent)}: failed after {limit_s:g} s (--heartbeat-timeout)"
    if job.liveness.reported is not None:
        return "reported as stalled"
    if found.finished and not found.lag:
        return f"reported as stalled after {liveness.finished_limit_s(job):g} s"
    if options.progress_timeout_s is None:
        limit = f"after {liveness.stall_limit_s(job):.0f} s" if found.waiting else "with --progress-timeout only"
        return f"reported as stalled {limit}"
    then = "ended and started again" if options.restart_stalled and found.lag else "reported as stalled"
    return f"{then} after {options.progress_timeout_s:g} s (--progress-timeout)"
