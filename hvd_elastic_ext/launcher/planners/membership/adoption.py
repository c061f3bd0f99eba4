"""Hosts that another launcher of this job had: they are waited for, and what they train goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.planners.health import liveness
from hvd_elastic_ext.launcher.planners.health.link_loss import RETURN_S
from hvd_elastic_ext.launcher.planners.membership import custody, world
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Agent

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""How long it is waited until a start that failed is tried again, on a host that may train with those that are back."""


def expect(job: JobState, hosts: Iterable[Host], *, until: float) -> None:
    """Another launcher had agents on these hosts; they are waited for until ``until`` (mono) at most."""
    job.adoption.begun, job.adoption.until = job.now, until
    for host in hosts:
        job.adoption.missing[host.name] = host
        _call(job, host)


def plan(job: JobState) -> Plan:
    """Decide nothing while hosts of an earlier launcher are waited for, or the launcher has lost its own link."""
    job.held = job.held or _waits(job)
    if job.held:
        liveness.forget_progress(job)
        custody.pause(job)
        return Plan(last=True)
    return NOTHING


def _waits(job: JobState) -> bool:
    """Whether nothing may be decided yet. When that is over, training goes on with those who are back."""
    if job.adoption.until is None:
        return False
    if job.adoption.missing and not _waited_enough(job, job.now, job.adoption.until):
        return True
    job.adoption.until = None
    if job.adoption.missing:
        log.warning("not back: %s", ", ".join(job.adoption.missing))
    world.take_over(job)
    job.save()
    return False


def _waited_enough(job: JobState, now: float, until: float) -> bool:
    # Whoever waits for a world is not kept waiting for long; those who train lack nothing.
    hurry = bool(job.rendezvous.waiting) and now - job.adoption.begun >= job.rules.heartbeat_timeout_s
    return now >= until or hurry or not on_their_way(job, now)


def on_their_way(job: JobState, now: float) -> bool:
    """Whether missing hosts may still come, on their own or because an agent is being started there."""
    return bool(job.adoption.missing) and (
        now - job.adoption.begun < RETURN_S or not job.adoption.failed.keys() >= job.adoption.missing.keys()
    )


def tend(job: JobState) -> Plan:
    """Look for those who train with others that are back, as long as that world stands."""
    now = job.now
    if not job.adoption.missing or job.adoption.until is not None:
        return NOTHING
    if job.world.inherited:
        for name, host in job.adoption.missing.items():
            agent = job.roster.agents.get(name)
            if agent is not None:
                agent.since = now  # it may take its time: nobody waits for it
            ended = job.adoption.failed.get(name, job.adoption.handed_over.get(name, now))
            if agent is not None and now - ended >= RETRY_S:
                _call(job, host)
        return NOTHING
    for name in job.adoption.missing:
        _treat_as_new(job, name, now)
    if job.world.members:  # whoever trained with them has gone on without them
        job.adoption.missing.clear()
    job.adoption.failed.clear()
    return NOTHING


def _treat_as_new(job: JobState, name: str, now: float) -> None:
    agent = job.roster.agents.get(name)
    if agent is None or agent.heard:
        return
    agent.since = now
    if name in job.adoption.failed:
        del job.roster.agents[name]


def came(job: JobState, host: str) -> None:
    """An agent has joined. Whoever comes late is of the world that was taken over, if it stands."""
    job.adoption.failed.pop(host, None)
    job.adoption.handed_over.pop(host, None)
    if job.adoption.missing.pop(host, None) is not None and job.adoption.until is None:
        world.take_over(job)


def failed(job: JobState, host: str, why: str) -> bool:
    """Take note that no agent could be started. False if that host is none of those looked for."""
    if host not in job.adoption.missing or (job.adoption.until is None and not job.world.inherited):
        return False
    log.warning("what may run on %s cannot be reached: %s", host, why)
    job.adoption.failed[host] = job.now
    return True


def handed_over(job: JobState, host: str) -> None:
    """The start of an agent found one that lives. It comes, unless it ends before it has."""
    if host in job.adoption.missing:
        job.adoption.handed_over[host] = job.now


def _call(job: JobState, host: Host) -> None:
    job.adoption.failed.pop(host.name, None)
    job.adoption.handed_over.pop(host.name, None)
    job.roster.agents[host.name] = Agent(host, job.now)
    job.start_agent(host)
