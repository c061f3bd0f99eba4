"""Cuts off hosts and kills processes that were silent for too long."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.membership.next_world import Stage
from hvd_elastic_ext.launcher.state import actions, orders
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Agent, Worker

log = logging.getLogger(__name__)

BEAT_S: Final = 2.0
"""A process may have received a message so long before its silence: the time between heartbeats."""
WAY_OUT_S: Final = 60.0
"""How long a process that is done, or was sent away, may be silent: the end of an interpreter takes time."""
GONE_S: Final = 2.0
"""How long a host that is not listed, or was not for a while, may be silent once its connection is lost: most likely it
is gone. Also how long messages of its agent may be on their way."""


def plan(job: JobState) -> Plan:
    """Cut off hosts and kill processes that were silent for too long. Its next time is :func:`due_at`."""
    if job.paused:
        return NOTHING
    end_earlier_lives(job)
    now = job.now
    for agent in list(job.roster.agents.values()):
        if agent.heard and now - agent.heard > _limit_s(job, agent):
            reason = f"nothing was heard of it for {now - agent.heard:.1f} s"
            cut_off(job, agent, reason, strike=not job.ending)
            gone = _goes(job, agent) or agent.heard <= agent.inherited_at
            if not (job.ending or gone) and agent.host.name in job.fleet.hosts:
                job.fleet.unheard[agent.host.name] = reason
    for worker in _silent(job):
        reason = f"its process was silent for {worker.silent_s:.1f} s"
        job.record("fenced", host=worker.seat.host, slot=worker.seat.slot, reason=reason)
        orders.kill(job, worker, Cause.SILENT)
    _ask_for_unreported_ends(job)
    return NOTHING


def due_at(job: JobState) -> float | None:
    """When the next host will have been silent for too long, unless it speaks (mono)."""
    agents = job.roster.agents.values()
    return min((agent.heard + _limit_s(job, agent) for agent in agents if agent.heard), default=None)


def is_due(job: JobState) -> bool:
    """Whether a host or a process is silent for too long now."""
    at = due_at(job)
    return (at is not None and at < job.now) or bool(_silent(job))


def launcher_paused(job: JobState, seconds: float) -> None:
    """The launcher itself was paused for ``seconds``: messages of agents from that time are not read yet."""
    now = job.now
    job.fleet.newer_lives = {
        name: each._replace(since=min(now, each.since + seconds)) for name, each in job.fleet.newer_lives.items()
    }
    for agent in job.roster.agents.values():
        agent.heard = min(now, agent.heard + seconds) if agent.heard else agent.heard


def end_earlier_lives(job: JobState) -> None:
    """Cut off agents with a container that has ended, without a strike for its successor.

    An agent that is still heard is of the new container.
    """
    now, limit_s = job.now, job.options.heartbeat_timeout_s
    for name, (host, since) in list(job.fleet.newer_lives.items()):
        agent = job.roster.agents.get(name)
        if agent is not None and agent.joined and agent.heard > since + GONE_S:
            move_to_new_pod(job, agent, host)
        elif agent is not None and agent.joined and now - agent.heard <= limit_s / 2:
            continue
        elif agent is not None:
            cut_off_dead(job, agent, "its container was started again")
        del job.fleet.newer_lives[name]


def move_to_new_pod(job: JobState, agent: Agent, host: Host) -> None:
    """Take ``host``, a new pod or container of the same name, as that of a living agent and its processes."""
    agent.host, agent.inherited_at = host, job.now
    for worker in job.roster.on(host.name):
        worker.host = host


def cut_off_dead(job: JobState, agent: Agent, reason: str) -> None:
    """Cut off an agent that is known to be dead, with its memory. It is not a strike."""
    log.warning("%s is cut off: %s", agent.host.name, reason)
    job.record("fenced", host=agent.host.name, reason=reason)
    job.roster.commits.ended(agent.host.name, reason)
    cut_off(job, agent, reason, strike=False)
    job.fleet.unheard.pop(agent.host.name, None)


def cut_off(job: JobState, agent: Agent, reason: str, *, strike: bool) -> None:
    """Remove a silent host. If its agent connects again, its processes are told to leave."""
    fleet = job.fleet
    name = agent.host.name
    fleet.lost[name] = agent.host.uid, agent.identity
    # An agent that was never heard since the host's successor came has died with its pod.
    strike = strike and agent.heard > agent.inherited_at
    del job.roster.agents[name]
    job.roster.commits.lost(name, heard=agent.heard, why=reason)
    for worker in job.roster.on(name):
        job.roster.remove(worker)
        job.rendezvous.ended(worker.life)
        if worker.stage is Stage.LIVE:
            fleet.cut_off_live.add(worker.life)
            fleet.recovering.update([name] if strike else [])
    job.do(actions.StopLaunch(name))
    job.do(actions.HangUp(name, reason))  # a machine that paused has not noticed anything
    if not strike or _goes(job, agent):
        return
    log.warning("%s is cut off: %s", name, reason)
    job.record("fenced", host=name, reason=reason)
    job.strike(Cause.FENCED, agent.host, detail=reason)


def _goes(job: JobState, agent: Agent) -> bool:
    """Whether an agent, or its host, was about to end in any case."""
    return agent.finishing or agent.leaves_by is not None or agent.host.name in job.leaves_by


def _limit_s(job: JobState, agent: Agent) -> float:
    """How long a host may be silent."""
    fleet = job.fleet
    limit_s = job.options.heartbeat_timeout_s
    if agent.host.name in fleet.newer_lives:
        return limit_s / 2 if agent.joined else 0.0
    listed = agent.host.name in fleet.hosts and agent.unlisted_at < agent.heard
    gone = not agent.joined and bool(fleet.hosts) and not listed
    return min(limit_s, GONE_S) if gone else limit_s


def _ask_for_unreported_ends(job: JobState) -> None:
    """A process that is missing from its agent's heartbeats has ended: have the agent report that again."""
    limit, agents = job.options.heartbeat_timeout_s, job.roster.agents
    lost: dict[str, list[Worker]] = {}
    for seat, worker in job.roster.workers.items():
        agent = agents.get(seat.host)
        if (
            worker.in_heartbeat_at is not None
            and agent is not None
            and agent.heartbeats_at - worker.in_heartbeat_at > limit
        ):
            lost.setdefault(seat.host, []).append(worker)
    for host, workers in lost.items():
        for worker in workers:
            worker.in_heartbeat_at = None
        names = ", ".join(str(worker.seat) for worker in workers)
        log.warning("%s ended without a report; its agent has to reconnect and report again", names)
        job.do(actions.HangUp(host, "its report was lost"))


def _silent(job: JobState) -> list[Worker]:
    limit = job.options.heartbeat_timeout_s
    silent = [worker for worker in job.roster.workers.values() if worker.silent_s > limit]
    return [worker for worker in silent if _is_overdue(job, worker)]


def _is_overdue(job: JobState, worker: Worker) -> bool:
    """Whether it is to be killed for its silence. A process that is leaving may be silent for longer."""
    limit, rendezvous = job.options.heartbeat_timeout_s, job.rendezvous
    # A process that was silent before it was told to leave has not received that.
    silent_since = job.now - worker.silent_s + BEAT_S
    told = worker.leaving is not None and silent_since > worker.leaving_since
    left = told and rendezvous.formed and worker.life not in rendezvous.members
    return worker.killed is None and worker.silent_s > (max(limit, WAY_OUT_S) if worker.done or left else limit)
