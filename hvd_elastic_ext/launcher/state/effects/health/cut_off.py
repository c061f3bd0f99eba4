"""A host is cut off: it is silent, or its pod or container has ended."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver import actions
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership.next_world import Stage

GONE_S: Final = 2.0
"""Longest silence, once its connection is lost, of a host that is not listed, or was not for a while: most likely
it is gone. Also the longest delay of its agent's messages.
"""


def end_earlier_lives(job: JobState) -> None:
    """Cut off agents whose container has ended, without a strike for its successor.

    An agent that still sends messages runs in the new container.
    """
    now, limit_s = job.now, job.options.heartbeat_timeout_s
    for name, (host, since) in list(job.fleet.newer_lives.items()):
        agent = job.roster.agents.get(name)
        if agent is not None and agent.joined and agent.last_message_at > since + GONE_S:
            move_to_new_pod(job, agent, host)
        elif agent is not None and agent.joined and now - agent.last_message_at <= limit_s / 2:
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
    job.record("fenced", host=agent.host.name, reason=reason)
    job.roster.commits.agent_ended(agent.host.name, reason)
    cut_off(job, agent, reason, strike=False)
    job.fleet.unreachable.pop(agent.host.name, None)


def cut_off(job: JobState, agent: Agent, reason: str, *, strike: bool) -> None:
    """Remove a silent host. If its agent connects again, its processes are told to leave."""
    fleet = job.fleet
    name = agent.host.name
    fleet.lost[name] = agent.host.uid, agent.identity
    # An agent that has sent no message since the host's successor came has died with its pod.
    strike = strike and agent.last_message_at > agent.inherited_at
    del job.roster.agents[name]
    job.roster.commits.agent_lost(name, last_message_at=agent.last_message_at, why=reason)
    for worker in job.roster.on(name):
        job.roster.remove(worker)
        job.rendezvous.ended(worker.life)
        if worker.stage is Stage.LIVE:
            fleet.cut_off_live.add(worker.life)
            fleet.recovering.update([name] if strike else [])
    job.do(actions.StopLaunch(name))
    job.do(actions.HangUp(name, reason))  # a machine that paused has not noticed anything
    if not strike or is_departing(job, agent):
        return
    job.record("fenced", host=name, reason=reason)
    job.strike(Cause.FENCED, agent.host, detail=reason)


def is_departing(job: JobState, agent: Agent) -> bool:
    """Whether an agent, or its host, was about to end in any case."""
    return agent.finishing or agent.leaves_by is not None or agent.host.name in job.leaves_by
