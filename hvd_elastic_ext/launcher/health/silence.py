"""Cuts off hosts and kills processes that were silent for too long."""

from __future__ import annotations

import logging
import math

from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent, Worker
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.state.effects.health.cut_off import GONE_S, cut_off, end_earlier_lives, is_departing
from hvd_elastic_ext.launcher.state.facts.silence import limit_s
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


def plan(job: JobState) -> Plan:
    """Cut off hosts and kill processes that were silent for too long. Its next time is :func:`due_at`."""
    if job.decisions_held:
        return NOTHING
    end_earlier_lives(job)
    now = job.now
    for agent in list(job.roster.agents.values()):
        if agent.last_message_at and now - agent.last_message_at > _limit_s(job, agent):
            reason = f"nothing was heard of it for {now - agent.last_message_at:.1f} s"
            cut_off(job, agent, reason, strike=not job.ending)
            gone = is_departing(job, agent) or agent.last_message_at <= agent.inherited_at
            if not (job.ending or gone) and agent.host.name in job.fleet.hosts:
                job.fleet.unreachable[agent.host.name] = reason
    for worker in _silent(job):
        reason = f"its process was silent for {worker.silent_s:.1f} s"
        job.record("fenced", host=worker.seat.host, slot=worker.seat.slot, reason=reason)
        orders.kill(job, worker, Cause.SILENT)
    _ask_for_unreported_ends(job)
    return NOTHING


def due_at(job: JobState) -> float | None:
    """When the next host will have been silent for too long, unless a message comes (mono)."""
    limit_s, agents = job.options.heartbeat_timeout_s, job.roster.agents.values()
    if job.fleet.newer_lives:
        return min(
            (agent.last_message_at + _limit_s(job, agent) for agent in agents if agent.last_message_at), default=None
        )
    first = (
        min((agent.last_message_at for agent in agents if agent.last_message_at and agent.joined), default=math.inf)
        + limit_s
    )
    others = [
        agent.last_message_at + _limit_s(job, agent) for agent in agents if agent.last_message_at and not agent.joined
    ]
    at = min(first, *others) if others else first
    return None if at == math.inf else at


def is_due(job: JobState) -> bool:
    """Whether a host or a process is silent for too long now."""
    at = due_at(job)
    return (at is not None and at < job.now) or bool(_silent(job))


def _limit_s(job: JobState, agent: Agent) -> float:
    """How long a host may be silent."""
    fleet = job.fleet
    limit_s = job.options.heartbeat_timeout_s
    if agent.host.name in fleet.newer_lives:
        return limit_s / 2 if agent.joined else 0.0
    listed = agent.host.name in fleet.hosts and agent.unlisted_at < agent.last_message_at
    gone = not agent.joined and bool(fleet.hosts) and not listed
    return min(limit_s, GONE_S) if gone else limit_s


def _ask_for_unreported_ends(job: JobState) -> None:
    """A process that is missing from its agent's heartbeats has ended: have the agent report that again."""
    limit, roster = job.options.heartbeat_timeout_s, job.roster
    lost: dict[str, list[Worker]] = {}
    for host, agent in roster.agents.items():
        latest = agent.heartbeats_at - limit
        if gone := [x for x in roster.on(host) if x.in_heartbeat_at is not None and x.in_heartbeat_at < latest]:
            lost[host] = gone
    for host, workers in lost.items():
        for worker in workers:
            worker.in_heartbeat_at = None
        names = ", ".join(str(worker.seat) for worker in workers)
        log.warning("%s ended without a report; its agent has to reconnect and report again", names)
        job.do(actions.HangUp(host, "its report was lost"))


def _silent(job: JobState) -> list[Worker]:
    limit = job.options.heartbeat_timeout_s
    silent = [worker for worker in job.roster.workers.values() if worker.silent_s > limit]
    return [worker for worker in silent if worker.killed is None and worker.silent_s > limit_s(job, worker)]
