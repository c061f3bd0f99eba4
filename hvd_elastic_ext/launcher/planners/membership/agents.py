"""Starts agents where processes are wanted, and ends those of hosts that are not published any more."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.launcher.planners.health import blame
from hvd_elastic_ext.launcher.planners.membership import custody
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.state import orders
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Agent

JOIN_S: Final = 60.0
"""How long an agent may take from its start to its first word."""
JOIN_EACH_S: Final = 1.0
"""What every agent that is on its way adds to that: only some are started at a time, the others stand in line."""


def plan(job: JobState) -> Plan:
    """Start agents where processes are wanted; end those of hosts that are not published any more."""
    now, needed = job.now, dict.fromkeys(seat.host for seat in job.wanted)
    for name in needed:
        host = job.fleet.hosts.get(name)
        if name not in job.roster.agents and host is not None:
            job.roster.agents[name] = Agent(host, now)
            job.start_agent(host)
    patience = JOIN_S + JOIN_EACH_S * sum(not agent.heard for agent in job.roster.agents.values())
    for name, agent in list(job.roster.agents.items()):
        # One that was told to finish does so. Where its host is wanted again, another follows it.
        leaves = agent.finishing or (name not in needed and name not in job.fleet.hosts)
        if leaves and not agent.dismissed and not job.roster.on(name) and _may_end(job, name):
            orders.dismiss(job, agent)  # the agent of a blocked host stays: what it holds may be needed
        if not agent.heard and now - agent.since > patience and name in job.roster.agents:
            del job.roster.agents[name]
            job.stop_launch(name)
            detail = f"no agent came within {patience:g} s"
            blame.strike(job, Cause.UNREACHABLE, agent.host, detail=detail, tried_s=now - agent.since)
    return NOTHING


def _may_end(job: JobState, host: str) -> bool:
    """Whether nobody needs what the agent of a host holds: a job that is to sleep has saved it, and others have it."""
    sleeps = job.rules.sleep_after_s is not None
    if sleeps and not job.standing and host in job.roster.holders():
        return False
    return not custody.needs(job, host)
