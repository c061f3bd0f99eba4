"""A launcher that is started again takes over the world that an earlier one has left.

Agents outlive a launcher, and training goes on without one. The hosts of the saved state are waited for; those that
connect report what runs, and their world is continued as it is. What has ended meanwhile is taken in as if it had ended
now. A host that does not come back in time is treated as a lost one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver import actions
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.roster import RECONNECT_S
from hvd_elastic_ext.launcher.driver.words import Wait, first_few
from hvd_elastic_ext.launcher.health.causes import ending
from hvd_elastic_ext.launcher.membership import calls
from hvd_elastic_ext.launcher.membership.rendezvous import places

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Adoption:
    """Hosts that an earlier launcher of this job had."""

    begun: float
    until: float | None = None
    """Until when they are waited for (mono); None if they are not."""
    missing: dict[str, Host] = field(default_factory=dict)
    """Hosts that may train for this job, and have not connected to this launcher."""
    failed: dict[str, float] = field(default_factory=dict)
    """When the last start of an agent on one of them has failed (mono)."""
    handed_over: dict[str, float] = field(default_factory=dict)
    """When the last start on one of them found a living agent, which connects by itself (mono)."""
    ends: dict[ProcessId, tuple[int, int]] = field(default_factory=dict)
    """Processes whose end was not reported to any launcher: the generation of their world, and the exit code."""

    def on_their_way(self, now: float) -> bool:
        """Whether missing hosts may still connect: by themselves, or by a start of an agent there."""
        recent = now - self.begun < RECONNECT_S
        return bool(self.missing) and (recent or not self.failed.keys() >= self.missing.keys())


# --- what happens


def expect(job: JobState, hosts: Iterable[Host], *, until: float) -> None:
    """Wait for ``hosts``, on which an earlier launcher had agents, until ``until`` (mono) at most."""
    job.adoption.begun, job.adoption.until = job.now, until
    for host in hosts:
        job.adoption.missing[host.name] = host
        call(job, host)


def taken_over(job: JobState) -> str:
    """One line about the processes of an earlier launcher that run on under this one."""
    workers = job.roster.workers.values()
    if not workers:
        why = "without a launcher they end after --orphan-grace, or with their machine"
        cure = "" if job.options.durability is not None else "; --checkpoint-every auto would keep what they trained"
        ended = f"; ended meanwhile: {ends}" if (ends := _ends_meanwhile(job)) else ""
        return f"nothing was taken over: no process of the earlier launcher runs ({why}{cure}){ended}"
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
    parts += calls.in_progress(present)
    if step := max((worker.step for worker in present), default=0):
        parts.append(f"step {step}")
    if ends := _ends_meanwhile(job):
        parts.append(f"ended meanwhile: {ends}")
    return "; ".join(parts)


def _ends_meanwhile(job: JobState) -> str:
    """How processes of the newest world have ended without a launcher, as their agents report."""
    ends = job.adoption.ends
    newest = max((generation for generation, _ in ends.values()), default=0)
    if newest < job.generation:  # processes of earlier worlds were replaced
        return ""
    texts = [
        f"{life.seat} ({ending(code).text})"
        for life, (generation, code) in ends.items()
        if generation == newest and code
    ]
    return first_few(texts)


def _counted(number: int, noun: str, ending: str) -> str:
    return f"{number} {noun}{'' if number == 1 else ending}"


def agent_joined(job: JobState, host: str) -> None:
    """An agent has joined. A late one belongs to the inherited world, if that stands."""
    job.adoption.failed.pop(host, None)
    job.adoption.handed_over.pop(host, None)
    if job.adoption.missing.pop(host, None) is not None and job.adoption.until is None:
        take_over(job)
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


def call(job: JobState, host: Host) -> None:
    """Have a missing host connect."""
    job.adoption.failed.pop(host.name, None)
    job.adoption.handed_over.pop(host.name, None)
    job.roster.start_agent(host, job.now)
    job.do(actions.StartAgent(host))


def take_over(job: JobState) -> None:
    """Inherit the world of an earlier launcher; again when more of its members are back."""
    world = job.world
    if world.own:
        return
    workers = [*job.roster.workers.values(), *(worker for worker, _ in job.fleet.unreported_ends.values())]
    for worker in workers:
        world.found.setdefault(worker.life, worker.generation)
    newest = max((world.found[worker.life] for worker in workers), default=0)
    members = job.fleet.by_seniority((life for life, found in world.found.items() if newest and found == newest))
    # Worlds that never formed have numbers, too; the next number is beyond all of them.
    job.generation = max(job.generation, newest)
    if not members:
        return
    world.provisional = places(members)
    job.rendezvous.adopt(job.generation, world.provisional)
    for worker in job.roster.present(members):
        worker.generation = job.generation
        worker.agreed = 0 if worker.in_prologue else job.generation
    world.members, world.begun = tuple(members), True
    world.before = Counter(life.seat.host for life in members)
    world.seats_before = frozenset(life.seat for life in members)


RETRY_S: Final = 10.0
"""Pause before a failed start is tried again on a host with processes that may train with those that are back."""


def waits(job: JobState) -> Wait | None:
    """While hosts of an earlier launcher are awaited: for those that have not connected to this one."""
    names = first_few(job.adoption.missing)
    return Wait(f"for hosts of the launcher before this one: {names}", job.adoption.until) if names else None


def plan(job: JobState) -> Plan:
    """Stop the look while hosts of an earlier launcher are awaited, or while the launcher has lost its own link."""
    job.decisions_held = job.decisions_held or _still_waits(job)
    if job.decisions_held:
        job.liveness.moved.clear()  # the progress of processes cannot be observed now
        job.custody.may_end_since.clear()  # nor can agents that may end send their commits
        return Plan(stop=True)
    return NOTHING


def _still_waits(job: JobState) -> bool:
    """Whether hosts are still awaited. When the wait ends, training continues with those that are back."""
    adoption = job.adoption
    if adoption.until is None:
        return False
    # A process that waits for a world should not wait long. Processes that train lose nothing by the wait.
    waited_enough = bool(job.rendezvous.waiting) and job.now - adoption.begun >= job.options.heartbeat_timeout_s
    if adoption.on_their_way(job.now) and not waited_enough and job.now < adoption.until:
        return True
    adoption.until = None
    for name in adoption.missing.keys() & job.roster.agents.keys():
        job.roster.agents[name].since = job.now  # from now on it has as long to connect as any other
    if adoption.missing:
        log.warning("not back: %s", ", ".join(adoption.missing))
    take_over(job)
    log.info("%s", taken_over(job))
    job.save()
    return False


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
                call(job, host)
        elif not agent.last_message_at and (name in adoption.failed or handed_over_s >= RETRY_S):
            # One that was found may have ended before it connected.
            adoption.handed_over.pop(name, None)
            del agents[name]
    if not job.world.inherited:
        if job.world.members:  # the others have continued without them
            adoption.missing.clear()
        adoption.failed.clear()
    return NOTHING
