"""A job resumes from its newest checkpoint: before the first world each host loads it into its commit memory.

Its processes find it there as the commit of an earlier process. Holders and transfers work as after any restart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.checkpoints.attempt import holding
from hvd_elastic_ext.launcher.checkpoints.finished import Finished
from hvd_elastic_ext.launcher.custody.holders import read, whole_number
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING, HeldBack, Plan
from hvd_elastic_ext.launcher.driver.helpers import Purpose
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Loading:
    """A host loads a checkpoint into the memory of its agent."""

    agent: str
    """The memory of another agent is empty."""
    ready: bool = False
    again_at: float | None = None
    """When another helper runs (mono)."""
    for_good: bool = False
    slots: list[int] = field(default_factory=list)
    """Those whose memory its helper may write."""
    seats: frozenset[Seat] = frozenset()
    """Those with the checkpoint in their memory."""

    @property
    def under_way(self) -> bool:
        """Whether the memory may be written to."""
        return bool(self.slots) and not self.ready


@dataclass(slots=True)
class Restore:
    """How far hosts have loaded the newest checkpoint before the first world."""

    expects: str | None
    """A checkpoint that exists: a host has it, or will have it."""
    hosts: dict[str, Loading] = field(default_factory=dict)
    why: str | None = None
    """Why the last host that tried could not read its storage."""
    reported: dict[str, str] = field(default_factory=dict)
    """By host, the newest reason in the log and the journal why it could not load a checkpoint."""
    path: str | None = None
    """The checkpoint that a host has loaded."""
    done: Finished | None = None
    """The newest checkpoint of a host is the end of this job: there is nothing to train."""


# --- what follows from the state


def may_start_on(job: JobState, host: str) -> bool:
    """Whether processes may start on a host: it has loaded the checkpoint, if there is or may be one.

    Once training has begun, they get their state from others.
    """
    loading = job.loading_of(host)
    if job.options.durability is None or (job.world.begun and loading is None):
        return True
    return loading is not None and (loading.ready or (job.world.begun and not loading.under_way))


# --- what happens


RETRY_S: Final = 5.0
"""Pause after a host could not read its storage."""


def agent_lost(job: JobState, host: str) -> None:
    """A connection was lost, and with it perhaps an answer."""
    job.helpers[Purpose.RESTORE].pop(host, None)
    loading = job.restore.hosts.get(host)
    if loading is not None and not loading.ready:
        loading.again_at = job.now


def answered(job: JobState, agent: Agent, answer: HelperAnswer) -> None:
    """A host has loaded the newest checkpoint, or found none, or failed."""
    host = agent.host.name
    loading = job.restore.hosts[host]
    del job.helpers[Purpose.RESTORE][host]
    if answer.failed is not None:
        _failed(job, host, loading, answer.failed, answer.content)
    else:
        loading.ready = True
        _loaded(job, agent, loading, answer.content)


def _loaded(job: JobState, agent: Agent, loading: Loading, answer: Mapping[str, Any]) -> None:
    state = job.restore
    host, held = agent.host.name, read(answer.get("held"))
    step, path, generation = (
        whole_number(answer.get("step")),
        answer.get("path"),
        whole_number(answer.get("generation")),
    )
    passed_over, filled = answer.get("passed_over"), answer.get("slots")
    for passed in passed_over if isinstance(passed_over, list) else ():
        job.record("checkpoint_skipped", host=host, reason=str(passed))
    if not isinstance(path, str) or step is None:
        return  # none here: training starts from the beginning, unless another host has one
    if answer.get("done") is True:
        state.done = state.done or Finished(path, step)
        return
    slots = [each for each in filled if whole_number(each) is not None] if isinstance(filled, list) else None
    loading.seats = frozenset(Seat(host, slot) for slot in (loading.slots if slots is None else slots))
    state.why = None
    commit = answer.get("commit")
    loaded = read([*commit, step]) if isinstance(commit, list) else None
    commits = job.roster.commits
    first_slot = Seat(host, slots[0]) if slots else None
    for seat in loading.seats:
        has = held if seat == first_slot and held is not None else loaded
        if has is not None and ((known := commits.commit_of(seat)) is None or known < has[0]):
            commits.reported(seat, *has, agent=agent.identity)
    if generation is not None:
        job.generation = max(job.generation, generation)
    job.checkpoints.readers |= {host}
    first, state.path = state.path is None, path
    if first:
        facts = answer.get("facts")
        attempt.resumed_from(job, path, step, facts if isinstance(facts, dict) else {}, loaded and loaded[0])
        call = whole_number(answer.get("call"))
        fields = {"path": path, "step": step, "call": call, "host": host}
        job.record("resumed", **fields, reason=f"the newest checkpoint is {path}")


def _failed(job: JobState, host: str, loading: Loading, why: str, answer: Mapping[str, Any]) -> None:
    now, unwritable = job.now, answer.get("unwritable") is True
    loading.slots, loading.again_at, loading.for_good = [], now + RETRY_S, answer.get("for_good") is True
    what = "write checkpoints (--checkpoint-dir)" if unwritable else "load a checkpoint"
    message = f"{host} cannot {what}: {why}"
    if why != job.restore.reported.get(host) and (holding(job) or not unwritable):  # most tries fail for one reason
        job.restore.reported[host] = why
        log.warning("%s", message)
        job.record("not_resumed", host=host, reason=why)
    if holding(job):
        loading.ready, loading.again_at = True, None  # it gets the state from a host that has loaded it
    else:
        job.restore.why = message


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
