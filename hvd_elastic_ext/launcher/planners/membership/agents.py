"""Starts agents where processes are wanted, and ends those of hosts that are not published any more."""

from __future__ import annotations

from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.state.facts import custody
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan


def plan(job: JobState) -> Plan:
    """Start missing agents, dismiss those that are not needed, and give up starts that take too long.

    Not in a job that has to end: its agents hold the state that is saved.
    """
    if job.before_exit.why is not None:
        return NOTHING
    now, agents, listed = job.now, job.roster.agents, job.fleet.hosts
    needed = dict.fromkeys([seat.host for seat in job.wanted])
    missing = [name for name in needed if name not in agents]
    for name in missing:
        if (host := listed.get(name)) is not None:
            job.roster.start_agent(host, now)
            job.do(actions.StartAgent(host))
    timeout = job.roster.join_timeout_s
    for name, agent in list(agents.items()):
        # A finishing agent ends in any case; if its host is wanted again, a new agent follows.
        leaves = agent.finishing or (name not in needed and name not in listed)
        if leaves and not agent.dismissed and not job.roster.on(name) and _may_end(job, name):
            orders.dismiss(job, agent)  # the agent of a blocked host stays: its commit may be needed
        if not agent.last_message_at and now - agent.since > timeout and name in agents:
            del agents[name]
            job.do(actions.StopLaunch(name))
            detail = f"no agent came within {timeout:g} s"
            job.strike(Cause.UNREACHABLE, agent.host, detail=detail, tried_s=now - agent.since)
    return NOTHING


def _may_end(job: JobState, host: str) -> bool:
    """Whether the commit of a host's agent is not needed: others hold it, and a job that may sleep has saved it."""
    sleeps = job.options.below_min == "sleep"
    if sleeps and not job.standing and host in job.roster.commits.newest_hosts():
        return False
    job.custody.asks_to_end(host, job.now)
    return not custody.is_needed(job, host)
