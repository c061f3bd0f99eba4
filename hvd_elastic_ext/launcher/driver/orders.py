"""Orders to agents and processes, used by several planners."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.launcher.driver.actions import StopLaunch, TellPeers
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent, Worker
    from hvd_elastic_ext.launcher.health.causes import Cause
    from hvd_elastic_ext.launcher.membership.rendezvous import Seat


STOP_AGAIN_S: Final = 10.0
"""Pause before a process is told again to end."""


def delay_restart(job: JobState, seat: Seat) -> None:
    """Delay the next process of a seat: the last one left by itself, and an immediate successor would, too."""
    job.fleet.restart_delays.begin(seat, job.now, job.options.cooldown_s)


def remove(job: JobState, worker: Worker, why: str) -> None:
    """Have a process leave: a member of a world at its next step, any other at once."""
    worker.leaving, worker.leaving_since = why, job.now
    if worker.stage is Stage.LIVE and worker.life not in job.rendezvous.waiting:
        worker.stopping_at = math.inf
        ask_to_leave(job, worker)
    else:
        stop(job, worker)


def stop(job: JobState, worker: Worker) -> None:
    """Tell a process to end, and again after a while: orders get lost."""
    worker.stopping_at, worker.stop_again_at = None, job.now + STOP_AGAIN_S
    job.order(worker, "stop")


def ask_to_leave(job: JobState, worker: Worker) -> None:
    """Tell a member to leave at its next step."""
    job.tell(worker, "update", generation=job.generation, leave=True, reason=worker.leaving)


def repeat_order(job: JobState, worker: Worker) -> None:
    """Send the last order to a process again, after its agent has connected again."""
    worker.called_at = None if worker.called_at is None else -math.inf
    if worker.killed is not None:
        job.order(worker, "kill")
    elif worker.stopping_at is not None:
        ask_to_leave(job, worker)
    elif worker.leaving is not None:
        job.order(worker, "stop")


def end(job: JobState, worker: Worker, why: str = "the job ends") -> None:
    """End a process now, with its grace, even if it has to leave at its next step."""
    if worker.leaving is None or worker.stopping_at is not None:
        worker.leaving, worker.stopping_at = worker.leaving or why, None
        job.order(worker, "stop")


def kill(job: JobState, worker: Worker, cause: Cause) -> None:
    """Kill a process: it may be stopped, and react to nothing else."""
    if worker.killed is None:
        worker.killed, worker.killed_at, worker.silent_then_s = cause, job.now, worker.silent_s
    job.order(worker, "kill")


def dismiss(job: JobState, agent: Agent) -> None:
    """Tell an agent to end."""
    if agent.dismissed:
        return
    agent.finishing = agent.dismissed = True
    if not job.send(agent.host.name, {"do": "finish"}):
        job.do(StopLaunch(agent.host.name))
        job.roster.agents.pop(agent.host.name, None)
        job.roster.commits.agent_lost(
            agent.host.name, last_message_at=agent.last_message_at, why="it was not connected when it was to end"
        )


def tell_peers(job: JobState, host: str | None) -> None:
    """Tell live processes, of one host or of all, how to find their peers from the next world on."""
    for worker in job.roster.workers.values() if host is None else job.roster.on(host):
        if worker.stage is Stage.LIVE:
            job.do(TellPeers(worker.life))


def name_world(job: JobState, worker: Worker, rank: int, size: int) -> None:
    """Tell a process which world it is in, before its rank is sent."""
    job.tell(worker, "world", generation=job.generation, rank=rank, size=size)
