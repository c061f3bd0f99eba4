"""Orders to agents and processes that several planners give."""

from __future__ import annotations

import math
from typing import Final

from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.membership.membership import Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.roster import Agent, Worker

STOP_AGAIN_S: Final = 10.0
"""How long after it was told to end a process is told so again."""


def without_delay(job: JobState, wanted: tuple[Seat, ...]) -> list[Seat]:
    """Of the wanted seats those that do not rest after their process left."""
    now = job.now
    return [seat for seat in wanted if job.fleet.rests.over(seat, now)]


def delay_restart(job: JobState, seat: Seat) -> None:
    """A process has left of its own accord: what follows it at once would most likely leave, too."""
    job.fleet.rests.begin(seat, job.now, job.rules.cooldown_s)


def remove(job: JobState, worker: Worker, why: str) -> None:
    """Have a process leave: a member of a world at its next step, anybody else at once."""
    worker.leaving, worker.leaving_since = why, job.now
    if worker.stage is Stage.LIVE and worker.life not in job.rendezvous.waiting:
        worker.stopping_at = math.inf
        ask_to_leave(job, worker)
    else:
        stop(job, worker)


def stop(job: JobState, worker: Worker) -> None:
    """Have a process end, and once more if it is there after a while: orders get lost."""
    worker.stopping_at, worker.stop_again_at = None, job.now + STOP_AGAIN_S
    job.order(worker, "stop")


def ask_to_leave(job: JobState, worker: Worker) -> None:
    generation, why = job.generation, worker.leaving
    job.tell(worker, "update", generation=generation, leave=True, reason=why)


def repeat_order(job: JobState, worker: Worker) -> None:
    worker.told_at = None if worker.told_at is None else -math.inf
    if worker.killed is not None:
        job.order(worker, "kill")
    elif worker.stopping_at is not None:
        ask_to_leave(job, worker)
    elif worker.leaving is not None:
        job.order(worker, "stop")


def end(job: JobState, worker: Worker, why: str = "the job ends") -> None:
    """End a process, with its grace: now, even if it was to leave at its next step."""
    if worker.leaving is None or worker.stopping_at is not None:
        worker.leaving, worker.stopping_at = worker.leaving or why, None
        job.order(worker, "stop")


def kill(job: JobState, worker: Worker, cause: Cause) -> None:
    """End a process at once; it may be stopped, and deaf to anything else."""
    if worker.killed is None:
        worker.killed, worker.killed_at = cause, job.now
    job.order(worker, "kill")


def dismiss(job: JobState, agent: Agent) -> None:
    """Have an agent end."""
    if agent.dismissed:
        return
    agent.finishing = agent.dismissed = True
    if not job.send(agent.host.name, {"do": "finish"}):
        job.stop_launch(agent.host.name)
        job.roster.agents.pop(agent.host.name, None)
        job.roster.commits.lost(agent.host.name, heard=agent.heard, why="it was not connected when it was to end")
