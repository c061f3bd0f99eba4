"""A job resumes from its newest checkpoint: before the first world each host loads it into its commit memory.

Its processes find it there as the commit of an earlier process. Holders and transfers work as after any restart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.facts.checkpoints import holding
from hvd_elastic_ext.launcher.state.parts.checkpoints import Loading
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, HeldBack, Plan

log = logging.getLogger(__name__)


EMPTY_S: Final = 0.5
"""How often to check whether processes that must end before a host loads have ended."""


def plan(job: JobState) -> Plan:
    """Load the newest checkpoint on each host where processes are to start for the first world."""
    if job.options.durability is None:
        return NOTHING
    if job.world.begun:
        _abandon(job)
        return NOTHING
    now, wanted = job.now, job.wanted
    ranks: dict[str, dict[str, int]] = {}
    for rank, seat in enumerate(wanted):
        ranks.setdefault(seat.host, {})[str(seat.slot)] = rank
    _reload_lost(job, wanted)
    for host, slots in ranks.items():
        agent, loading = job.roster.agents.get(host), job.loading_of(host)
        if agent is None or not agent.joined or agent.finishing or host in job.transferring:
            continue
        if loading is None and (found := job.roster.on(host)):
            if all(worker.stage is not Stage.LIVE for worker in found):
                job.restore.hosts[host] = Loading(agent.identity, ready=True)  # it ran already: it has its state
                job.helpers[Purpose.RESTORE].pop(host, None)
            # Otherwise its processes are of a lost world: they are told to leave, and their commits may be old.
        elif loading is None or (loading.again_at is not None and now >= loading.again_at):
            _load(job, agent, slots)
    _fail_if_unreadable(job, set(ranks))
    return Plan(_next_look(job))


def why_not(job: JobState) -> HeldBack | None:
    """Why the first world does not form: no member has the checkpoint, and there is or may be one."""
    state = job.restore
    members = job.decision.members
    if members is None or job.options.durability is None or job.world.begun:
        return None
    if not holding(job).isdisjoint(life.seat for life in members):
        return None
    if state.path is not None:
        return HeldBack(f"no process that is ready holds {state.path}")
    hosts = {seat.host: job.loading_of(seat.host) for seat in job.wanted}
    if state.expects is not None:
        return HeldBack(f"none of the hosts that are ready has {state.expects}, or any checkpoint")
    late = sorted(host for host, loading in hosts.items() if loading is not None and not loading.ready)
    return HeldBack(f"{', '.join(late)} may hold a checkpoint, and is not ready") if late else None


def _next_look(job: JobState) -> float | None:
    """When a host is to try again (mono)."""
    now = job.now  # a host that cannot try yet needs no earlier look
    times = [at for each in job.restore.hosts.values() if (at := each.again_at) is not None and at > now]
    return None if job.world.begun else min(times, default=None)


def _reload_lost(job: JobState, wanted: tuple[Seat, ...]) -> None:
    """If all hosts that loaded the checkpoint are gone or unused, others load it once their processes have ended."""
    hosts = {seat.host: job.loading_of(seat.host) for seat in wanted}
    under_way = any(loading is not None and loading.under_way for loading in hosts.values())
    if job.restore.path is None or under_way or not holding(job).isdisjoint(wanted):
        return
    for host, loading in hosts.items():
        if loading is None or not loading.ready:
            continue
        loading.ready, loading.again_at = False, job.now
        for worker in job.roster.on(host):
            if worker.leaving is None:
                orders.remove(job, worker, "its host is to load the checkpoint first")


def _fail_if_unreadable(job: JobState, hosts: set[str]) -> None:
    """End the job if no host has the checkpoint, or may still get it."""
    known = [job.loading_of(host) for host in hosts]
    answered = [loading for loading in known if loading is not None and not loading.under_way]
    if len(answered) == len(known) and any(loading.for_good for loading in answered) and not holding(job):
        job.fail(JobFailed(job.restore.why or "no checkpoint can be loaded"))


def _abandon(job: JobState) -> None:
    """Training has begun: end loads that still run; those hosts get their state from others."""
    for host in list(job.restore.hosts):
        loading = job.loading_of(host)
        if loading is not None and loading.under_way:
            if not job.send(host, {"do": "drop", "slots": loading.slots}):
                continue  # no process starts there before it has that order
            commits = job.roster.commits
            for slot in loading.slots:
                if commits.commit_of(Seat(host, slot)) is None:  # the rest of an ended load
                    job.send(host, {"do": "forget", "slot": slot})
        del job.restore.hosts[host]
    job.helpers[Purpose.RESTORE].clear()


def _load(job: JobState, agent: Agent, slots: Mapping[str, int]) -> None:
    assert job.options.durability is not None
    host = agent.host.name
    if job.roster.on(host):
        job.restore.hosts[host].again_at = job.now + EMPTY_S
        return
    done = None if job.options.durability.train_on else job.options.durability.mark
    request = {"do": "load", "place": job.options.durability.place, "ranks": slots, "done": done}
    loading = job.restore.hosts[host] = Loading(agent.identity, slots=[int(slot) for slot in slots])
    job.run_helper(Purpose.RESTORE, host, loading.slots, request)
