"""A job begins where its newest checkpoint ends: before the first world each host gets it into its commit memory.

Its processes then find what they take for the commit of the process before them,
and all that follows (who holds the newest, who sends it to whom) is as after any restart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.planners.checkpoints import coordinator
from hvd_elastic_ext.launcher.rules.checkpoints.attempt import last_words
from hvd_elastic_ext.launcher.rules.checkpoints.finished import Finished
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state import orders
from hvd_elastic_ext.launcher.state.checkpoints import Loading
from hvd_elastic_ext.launcher.state.commit_holders import read
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Agent

log = logging.getLogger(__name__)

AGAIN_S: Final = 5.0
"""Pause after a host could not read its storage."""
EMPTY_S: Final = 0.5
"""How often a host is looked at whose processes are to end before it loads."""


def ready(job: JobState, host: str) -> bool:
    """Whether processes may be started on a host: those of a job that has begun get their state from others."""
    loading = _of(job, host)
    if job.rules.durability is None or (job.world.begun and loading is None):
        return True
    return loading is not None and (loading.ready or (job.world.begun and not loading.under_way))


def plan(job: JobState) -> Plan:
    """Have the newest checkpoint loaded wherever processes are about to be started for the first world."""
    if job.rules.durability is None:
        return NOTHING
    if job.world.begun:
        _abandon(job)
        return NOTHING
    now, wanted = job.now, job.wanted
    ranks: dict[str, dict[str, int]] = {}
    for rank, seat in enumerate(wanted):
        ranks.setdefault(seat.host, {})[str(seat.slot)] = rank
    _see_lost(job, wanted)
    for host, slots in ranks.items():
        agent, loading = job.roster.agents.get(host), _of(job, host)
        if agent is None or not agent.joined or agent.finishing or host in job.transferring:
            continue
        if loading is None and (found := job.roster.on(host)):
            if all(worker.stage is not Stage.LIVE for worker in found):
                job.restore.hosts[host] = Loading(agent.identity, ready=True)  # found at work: it has what it needs
            # Else they are of a world that is gone: they are sent away, and what they leave may be old.
        elif loading is None or (loading.again_at is not None and now >= loading.again_at):
            _load(job, agent, slots)
    _see_failure(job, set(ranks))
    return Plan(_next_look(job))


def held_back(job: JobState, decision: Decision) -> Decision:
    """Have a first world wait for somebody who holds the checkpoint, if there is one, or may be."""
    state = job.restore
    members = decision.members
    if members is None or job.rules.durability is None or job.world.begun:
        return decision
    holding = _holding(job)
    if not holding.isdisjoint(life.seat for life in members):
        return decision
    if state.path is not None:
        return Decision(None, "", f"nobody who is ready holds {state.path}")
    hosts = {seat.host: _of(job, seat.host) for seat in job.wanted}
    if state.expects is not None:
        return Decision(None, "", f"none of the hosts that are ready has {state.expects}, or any checkpoint")
    late = sorted(host for host, loading in hosts.items() if loading is not None and not loading.ready)
    return Decision(None, "", f"{', '.join(late)} may hold a checkpoint, and is not ready") if late else decision


def _next_look(job: JobState) -> float | None:
    """When a host is to try again (mono)."""
    now = job.now  # who cannot try when it could does not hurry anybody
    times = [at for each in job.restore.hosts.values() if (at := each.again_at) is not None and at > now]
    return None if job.world.begun else min(times, default=None)


def explained(job: JobState, lost: JobFailed | None) -> JobFailed | None:
    """Say of a job that waited in vain for its first world what it waited for."""
    state = job.restore
    why = state.why
    if why is None and state.expects is not None and state.path is None:
        remedy = "bring one back that has, or name another --checkpoint-dir to begin anew"
        why = f"{state.expects} was made, and no host that came has it; {remedy}"
    if lost is None or why is None or job.world.begun:
        return lost
    return JobFailed(f"{why} (for --elastic-timeout {job.rules.elastic_timeout_s:g} s)")


def _of(job: JobState, host: str) -> Loading | None:
    """How far a host is, by the agent that is there."""
    loading, agent = job.restore.hosts.get(host), job.roster.agents.get(host)
    return loading if loading is not None and agent is not None and agent.identity == loading.agent else None


def _holding(job: JobState) -> frozenset[Seat]:
    """Seats whose process finds the checkpoint."""
    found = [_of(job, host) for host in job.restore.hosts]
    return frozenset(seat for loading in found if loading is not None for seat in loading.seats)


def _see_lost(job: JobState, wanted: tuple[Seat, ...]) -> None:
    """All that had loaded the checkpoint is gone, or not used: others load it, when their processes have ended."""
    hosts = {seat.host: _of(job, seat.host) for seat in wanted}
    under_way = any(loading is not None and loading.under_way for loading in hosts.values())
    if job.restore.path is None or under_way or not _holding(job).isdisjoint(wanted):
        return
    for host, loading in hosts.items():
        if loading is None or not loading.ready:
            continue
        loading.ready, loading.again_at = False, job.now
        for worker in job.roster.on(host):
            if worker.leaving is None:
                orders.remove(job, worker, "its host is to load the checkpoint first")


def _see_failure(job: JobState, hosts: set[str]) -> None:
    """End the job if nobody has the checkpoint, or may still get it."""
    known = [_of(job, host) for host in hosts]
    told = [loading for loading in known if loading is not None and not loading.under_way]
    if len(told) == len(known) and any(loading.for_good for loading in told) and not _holding(job):
        job.fail(JobFailed(job.restore.why or "no checkpoint can be loaded"))


def _abandon(job: JobState) -> None:
    """Training has begun: who still loads gets its state from others, in memory that nobody else writes to."""
    for host in list(job.restore.hosts):
        loading = _of(job, host)
        if loading is not None and loading.under_way:
            if not job.send(host, {"do": "drop", "slots": loading.slots}):
                continue  # nothing is started there before it has heard that
            commits = job.roster.commits
            for slot in loading.slots:
                if commits.commit_of(Seat(host, slot)) is None:  # what it holds, a load that was ended has left
                    job.send(host, {"do": "forget", "slot": slot})
        del job.restore.hosts[host]


def _load(job: JobState, agent: Agent, slots: Mapping[str, int]) -> None:
    assert job.rules.durability is not None
    number, host = job.new_errand(), agent.host.name
    if job.roster.on(host):
        job.restore.hosts[host].again_at = job.now + EMPTY_S
        return
    done = None if job.rules.durability.train_on else job.rules.durability.mark
    request = {"do": "load", "place": job.rules.durability.place, "ranks": slots, "done": done}
    numbers = [int(slot) for slot in slots]
    order = {"do": "errand", "id": number, "slots": numbers, "request": request}
    if job.send(host, order):
        job.restore.hosts[host] = Loading(agent.identity, number, slots=numbers)


def lost(job: JobState, host: str) -> None:
    """A connection was lost, and with it perhaps an answer."""
    loading = job.restore.hosts.get(host)
    if loading is not None and not loading.ready:
        loading.again_at = job.now


def is_busy(job: JobState, host: str) -> bool:
    """Whether a host's agent loads the checkpoint."""
    loading = _of(job, host)
    return loading is not None and loading.under_way


def take(job: JobState, agent: Agent, news: Mapping[str, Any]) -> bool:
    """Take in what an agent says of its errand; False if it is about something else."""
    host, event = agent.host.name, news.get("event")
    loading = job.restore.hosts.get(host)
    if event not in ("errand", "errand_ended") or loading is None or loading.number != news.get("id"):
        return False
    if loading.ready or loading.again_at is not None:
        return True
    answer = news.get("answer")
    if event == "errand_ended":
        _failed(job, host, loading, last_words(news))
    elif isinstance(answer, dict) and isinstance(why := answer.get("failed"), str):
        _failed(job, host, loading, why, for_good=answer.get("for_good") is True)
    elif isinstance(answer, dict):
        loading.ready = True
        _loaded(job, agent, loading, answer)
    return True


def _loaded(job: JobState, agent: Agent, loading: Loading, answer: Mapping[str, Any]) -> None:
    state = job.restore
    host, held = agent.host.name, read(answer.get("held"))
    step, path, generation = answer.get("step"), answer.get("path"), answer.get("generation")
    for passed in answer.get("passed_over") or ():
        log.warning("%s: a checkpoint is passed over: %s", host, passed)
        job.record("passed_over", host=host, reason=str(passed))
    if not isinstance(path, str) or not isinstance(step, int):
        return  # there is none here: training begins at the beginning, unless another host has one
    if answer.get("done") is True:
        state.done = state.done or Finished(path, step)
        return
    filled = answer.get("slots")
    loading.seats = frozenset(Seat(host, slot) for slot in (filled if isinstance(filled, list) else loading.slots))
    state.why = None
    loaded = read([*(answer.get("commit") or ()), step])
    commits = job.roster.commits
    first_slot = Seat(host, filled[0]) if isinstance(filled, list) and filled else None
    for seat in loading.seats:
        has = held if seat == first_slot and held is not None else loaded
        if has is not None and ((known := commits.commit_of(seat)) is None or known < has[0]):
            commits.told(seat, *has, agent=agent.identity)
    if isinstance(generation, int):
        job.generation = max(job.generation, generation)
    coordinator.is_read_by(job, host)
    first, state.path = state.path is None, path
    if first:
        facts = answer.get("facts")
        coordinator.began_with(job, path, step, facts if isinstance(facts, dict) else {}, loaded and loaded[0])
        log.warning("training goes on after step %d, with the checkpoint %s", step, path)
        job.record("resumed", path=path, step=step, host=host, reason=f"the newest checkpoint is {path}")


def _failed(job: JobState, host: str, loading: Loading, why: str, *, for_good: bool = False) -> None:
    now = job.now
    loading.number, loading.again_at, loading.for_good = None, now + AGAIN_S, for_good
    log.warning("%s cannot load a checkpoint: %s", host, why)
    job.record("not_resumed", host=host, reason=why)
    if _holding(job):
        loading.ready, loading.again_at = True, None  # it gets it from those that could
    else:
        job.restore.why = f"{host} cannot load a checkpoint: {why}"
