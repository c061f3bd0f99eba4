"""Waits for the hosts of an earlier launcher, and continues the world that they train in."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.planners.membership import world
from hvd_elastic_ext.launcher.state import actions
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Agent

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""Pause before a failed start is tried again on a host with processes that may train with those that are back."""


def expect(job: JobState, hosts: Iterable[Host], *, until: float) -> None:
    """Wait for ``hosts``, on which an earlier launcher had agents, until ``until`` (mono) at most."""
    job.adoption.begun, job.adoption.until = job.now, until
    for host in hosts:
        job.adoption.missing[host.name] = host
        _call(job, host)


def plan(job: JobState) -> Plan:
    """Stop the look while hosts of an earlier launcher are awaited, or while the launcher has lost its own link."""
    job.paused = job.paused or _waits(job)
    if job.paused:
        job.liveness.moved.clear()  # the progress of processes cannot be observed now
        job.custody.may_end_since.clear()  # nor can agents that may end send their commits
        return Plan(stop=True)
    return NOTHING


def _waits(job: JobState) -> bool:
    """Whether hosts are still awaited. When the wait ends, training continues with those that are back."""
    adoption = job.adoption
    if adoption.until is None:
        return False
    # A process that waits for a world is not kept waiting for long; those that train lack nothing.
    waited_enough = bool(job.rendezvous.waiting) and job.now - adoption.begun >= job.options.heartbeat_timeout_s
    if adoption.on_their_way(job.now) and not waited_enough and job.now < adoption.until:
        return True
    adoption.until = None
    for name in adoption.missing.keys() & job.roster.agents.keys():
        job.roster.agents[name].since = job.now  # from now on it has as long to connect as any other
    if adoption.missing:
        log.warning("not back: %s", ", ".join(adoption.missing))
    world.take_over(job)
    log.info("%s", taken_over(job))
    job.save()
    return False


def taken_over(job: JobState) -> str:
    """What of an earlier launcher's job runs on under this one, in one line."""
    workers = job.roster.workers.values()
    if not workers:
        why = "without a launcher they end after --orphan-grace, or with their machine"
        cure = "" if job.options.durability is not None else "; --checkpoint-every auto would keep what they trained"
        return f"nothing was taken over: no process of the earlier launcher runs ({why}{cure})"
    counts = Counter(worker.seat.host for worker in workers)
    where = ", ".join(f"{host}:{count}" for host, count in counts.items())
    parts = [f"taken over: {_counted(len(workers), 'process', 'es')} on {_counted(len(counts), 'host', 's')} ({where})"]
    members = job.world.members
    if not members:
        return "; ".join([*parts, "no world has formed yet"])
    present = job.roster.present(members)
    parts.append(f"world {job.generation}, size {len(members)}")
    if lost := len(members) - len(present):
        parts.append(f"{lost} of its processes not heard of")
    if step := max((worker.step for worker in present), default=0):
        parts.append(f"step {step}")
    return "; ".join(parts)


def _counted(number: int, noun: str, ending: str) -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"


def retry_missing(job: JobState) -> Plan:
    """Keep trying to reach missing hosts while the inherited world stands; after that they are new hosts."""
    adoption, agents, now = job.adoption, job.roster.agents, job.now
    if not adoption.missing or adoption.until is not None:
        return NOTHING
    for name, host in adoption.missing.items():
        agent = agents.get(name)
        if agent is None:
            continue
        handed_over_s = now - adoption.handed_over.get(name, now)
        if job.world.inherited:
            agent.since = now  # no join timeout: the world trains without it
            if now - adoption.failed.get(name, now - handed_over_s) >= RETRY_S:
                _call(job, host)
        elif not agent.heard and (name in adoption.failed or handed_over_s >= RETRY_S):
            # One that was found may have ended before it connected.
            adoption.handed_over.pop(name, None)
            del agents[name]
    if not job.world.inherited:
        if job.world.members:  # those that trained with them have gone on without them
            adoption.missing.clear()
        adoption.failed.clear()
    return NOTHING


def came(job: JobState, host: str) -> None:
    """An agent has joined. A late one belongs to the inherited world, if that stands."""
    job.adoption.failed.pop(host, None)
    job.adoption.handed_over.pop(host, None)
    if job.adoption.missing.pop(host, None) is not None and job.adoption.until is None:
        world.take_over(job)
        log.info("%s is back; %s", host, taken_over(job))


def failed(job: JobState, host: str, why: str) -> bool:
    """Note that no agent could be started. False if the host is not one of the missing ones."""
    if host not in job.adoption.missing or (job.adoption.until is None and not job.world.inherited):
        return False
    log.warning("what may run on %s cannot be reached: %s", host, why)
    job.adoption.failed[host] = job.now
    return True


def handed_over(job: JobState, host: str) -> None:
    """A start found a living agent, which now connects by itself."""
    if host in job.adoption.missing:
        job.adoption.handed_over[host] = job.now


def _call(job: JobState, host: Host) -> None:
    job.adoption.failed.pop(host.name, None)
    job.adoption.handed_over.pop(host.name, None)
    job.roster.agents[host.name] = Agent(host, job.now)
    job.do(actions.StartAgent(host))
