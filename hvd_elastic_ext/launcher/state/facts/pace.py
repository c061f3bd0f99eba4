"""Whether the world makes steps, for whom it waits if not, and what happens if that lasts."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Final

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.health.pace import SOON_S, StepPause, pause
from hvd_elastic_ext.launcher.health.stalls import Member
from hvd_elastic_ext.launcher.state.facts.health import finished_limit_s, stall_limit_s

SILENT_S: Final = 1.9
"""A process without a heartbeat for this time, almost two heartbeats, may hang, whatever the last one reported."""
KNOWN_S: Final = 1.2
"""How long a heartbeat of its agent without progress is valid: until the next one is due."""


def pause_of(job: JobState) -> StepPause | None:
    """The pause of the world at this moment; None while it makes steps as usual."""
    present = job.roster.present(job.world.members)
    if any(_still_s(job, worker) < SOON_S for worker in present if _is_watched(worker)):
        return None  # usually the first one: a world that trains costs nothing
    watched = [worker for worker in present if _is_watched(worker)]
    if not watched:
        return without_sign(job, present)
    members = [_member(job, worker) for worker in watched]
    finished = [_member(job, worker) for worker in present if worker.done and worker.killed is None]
    unbegun = [
        _member(job, worker)
        for worker in present
        if worker.killed is None and not (worker.done or worker.progress or worker.waiting)
    ]
    killed = [_member(job, worker) for worker in present if worker.killed is not None]
    return pause(job.now, members, (worker.steps_s for worker in watched), finished, unbegun=unbegun, killed=killed)


def without_sign(job: JobState, present: tuple[Worker, ...]) -> StepPause | None:
    """The pause of a world whose members ``present`` are all in it and have given no sign of training yet."""
    if not job.formed or not present or len(present) < len(job.world.members):
        return None
    heard = []
    for each in present:
        if _is_watched(each) or each.killed is not None or each.done or each.generation < job.generation:
            return None
        if each.in_heartbeat_at is None:
            return None
        heard.append(each.in_heartbeat_at + KNOWN_S)
    began = max(each.since for each in present)
    still_s = min(job.now, *heard) - began
    if still_s < SOON_S:
        return None
    members = [replace(_member(job, each), moved_at=began) for each in present]
    agents = map(job.roster.agents.get, {each.seat.host for each in present})
    shares = [agent.usage["cpu"] for agent in agents if agent is not None and "cpu" in agent.usage]
    looping = any(each.loops for each in present)
    busy = fmean(shares) if shares else None
    prologue = job.in_prologue
    return StepPause(still_s, 0.0, (), 0, unbegun=tuple(members), busy=busy, looping=looping, prologue=prologue)


def what_follows(job: JobState, found: StepPause) -> str:
    """When it counts as a fault, and what happens then."""
    options = job.options
    if found.killed:
        return "no limit: it ends with the process there"
    workers = [worker for member in found.lag if (worker := job.roster.alive(member.life)) is not None]
    if found.waiting and (silent := [str(worker.seat) for worker in workers if worker.silent_s >= SILENT_S]):
        limit_s = options.heartbeat_timeout_s
        return f"no heartbeat from {', '.join(silent)}: failed after {limit_s:g} s (--heartbeat-timeout)"
    if job.liveness.reported is not None:
        return "reported as stalled; no limit: it ends when the stalled ranks go on, or their processes end"
    if found.finished and not found.lag:
        return f"reported as stalled after {finished_limit_s(job):g} s"
    if options.progress_timeout_s is None:
        always = found.waiting and not job.in_prologue
        limit = f"after {stall_limit_s(job):.0f} s" if always else "only if --progress-timeout S is given"
        return f"reported as stalled {limit}"
    then = "ended and started again" if options.restart_stalled and found.lag else "reported as stalled"
    return f"{then} after {options.progress_timeout_s:g} s (--progress-timeout)"


def _member(job: JobState, worker: Worker) -> Member:
    place = job.rendezvous.place(worker.life)
    waiting = worker.waiting and worker.silent_s < SILENT_S
    return Member(worker.life, -1 if place is None else place.rank, job.now - _still_s(job, worker), waiting)


def _is_watched(worker: Worker) -> bool:
    """Whether it trains and reports its progress."""
    return worker.killed is None and not worker.done and bool(worker.progress or worker.waiting)


def _still_s(job: JobState, worker: Worker) -> float:
    """For how long it has made no progress. Without heartbeats of its agent nothing is known."""
    if worker.in_heartbeat_at is None:
        return 0.0
    return min(job.now, worker.in_heartbeat_at + KNOWN_S) - max(worker.moved_at, job.pace.since)
