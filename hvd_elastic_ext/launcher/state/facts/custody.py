"""Who holds the newest commit, who may be in the next world, and who has to stay for that commit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final

from hvd_elastic_ext.launcher.custody import custody
from hvd_elastic_ext.launcher.custody.custody import CustodyFacts, Stored
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

ENDS_S: Final = 5.0
"""Longest wait for the end of a killed process; usually it is reported at once."""


def is_needed(job: JobState, host: str) -> bool:
    """Whether the agent of a host has to stay because only it holds the newest commit."""
    since = job.custody.may_end_since.get(host, job.now)
    heard = {name for name, agent in job.roster.agents.items() if agent.last_message_at > since}
    members, leaving = {life.seat.host for life in job.world.members}, leaving_or_unlisted(job)
    if is_in_sync(job) and not _is_ahead(job, host) and not members <= leaving.keys():
        return members.isdisjoint(heard)  # a member without a message since then may be gone with its commit
    facts = _facts(job)
    return custody.is_needed(job.now, host, facts, job.options.commit_wait_s, may_end_since=since, heard=heard)[0]


def is_awaited(job: JobState) -> bool:
    """Whether the only holder of the newest commit is awaited: nothing older may replace that commit yet."""
    return not is_in_sync(job) and custody.awaited(job.now, _facts(job), job.options.commit_wait_s) is not None


def is_in_sync(job: JobState) -> bool:
    """Whether a world trains and has agreed on its state: its members hold the newest commit."""
    return job.standing and job.formed and job.settled


def _is_ahead(job: JobState, host: str) -> bool:
    """Whether a host holds a newer commit than the members of the world that trains."""
    commits = job.roster.commits
    own = commits.of_host(host)
    theirs = (held for life in job.world.members if (held := commits.commit_of(life.seat)) is not None)
    return own is not None and own > max(theirs, default=own)


def candidates(job: JobState) -> tuple[tuple[Seat, ...], bool]:
    """Seats that form the next world, or may form it; and whether they form it now."""
    roster = job.roster
    if not job.formed:  # ``may_form`` decides when all its members wait for their ranks
        return (), False
    if job.decision.members is not None:
        return tuple(life.seat for life in job.decision.members), True
    trains = any(worker.killed is None and worker.stage is Stage.LIVE for worker in roster.workers.values())
    enough = job.options.limits.size(len(job.wanted), begun=job.world.begun) > 0
    if trains or not enough:
        return (), False
    return tuple(seat for seat in job.wanted if _joined(job, seat.host)), False


def has_newest(job: JobState, seats: Sequence[Seat]) -> bool:
    """Whether one of these seats holds the newest commit, and can be reached: then a world of them may form.

    This is the usual case, and does not read the holdings of thousands.
    """
    commits = job.roster.commits
    newest = commits.newest
    held = map(commits.held.get, seats)
    has = any(each is not None and each.commit == newest and each.away_since is None for each in held)
    return has and commits.covers_newest(seats) and not storage_may_be_newer(job, seats) and not ending(job)


def _facts(job: JobState) -> CustodyFacts:
    """The facts that do not depend on members: which slots hold which commits."""
    how = job.options.durability
    return CustodyFacts(
        holdings=job.roster.commits.holdings(leaving_or_unlisted(job)),
        stored=_stored(job),
        sending=job.transfers.sending or job.calls.sending,
        readers=None if how is not None and "://" in how.place else job.checkpoints.readers,
    )


def facts_for(job: JobState, seats: Iterable[Seat], *, ready: bool) -> CustodyFacts:
    """The same, with the other facts for a world of these seats, or for a transfer."""
    members, active = tuple(seats), _active(job)
    joined = {name for name in job.roster.agents if _joined(job, name)}
    keepers = () if members else _keepers(job, joined - leaving_or_unlisted(job).keys())
    return replace(
        _facts(job),
        members=members,
        ready=ready,
        writable=frozenset(seat for seat in (*members, *keepers) if seat not in active and seat.host in joined),
        keepers=keepers,
        failing=job.transfers.failing,
        loading=job.transfers.loading,
        looked=_looked(job),
        active=active,
        ending=ending(job),
    )


def ending(job: JobState) -> dict[Seat, float]:
    """Seats with a process that was in a world and was killed, and until when its end is awaited."""
    agents = job.roster.agents
    return {
        worker.seat: worker.killed_at + ENDS_S
        for worker in job.roster.workers.values()
        if worker.killed is not None and worker.generation and (agent := agents.get(worker.seat.host)) and agent.joined
    }


def leaving_or_unlisted(job: JobState) -> Mapping[str, float]:
    """Hosts that leave, and when (mono): those with notice, and those that are not published any more."""
    leaving, agents = dict(job.leaves_by), job.roster.agents
    for name, agent in agents.items():
        if name not in job.fleet.hosts or agent.finishing:
            leaving.setdefault(name, math.inf)
    return leaving


def storage_may_be_newer(job: JobState, seats: Iterable[Seat]) -> bool:
    """Whether the newest checkpoint may hold a newer commit than the memory of all these seats."""
    stored, commits = _stored(job), job.roster.commits
    if stored is None:
        return False
    own = max((held for seat in seats if (held := commits.commit_of(seat)) is not None), default=None)
    return own is None or (stored.commit is not None and stored.commit > own)


def _keepers(job: JobState, staying: Set[str]) -> tuple[Seat, ...]:
    return tuple(
        Seat(host.name, slot) for host in job.fleet.hosts if host.name in staying for slot in range(host.slots)
    )


def _joined(job: JobState, host: str) -> bool:
    agent = job.roster.agents.get(host)
    return agent is not None and agent.joined and not agent.finishing


def _active(job: JobState) -> frozenset[Seat]:
    """Seats with a process that may commit into their memory now."""
    workers, waiting = job.roster.workers.items(), job.rendezvous.waiting
    return frozenset(seat for seat, worker in workers if worker.stage is Stage.LIVE and worker.life not in waiting)


def _stored(job: JobState) -> Stored | None:
    """The newest checkpoint; before the first world, only one with a known commit."""
    how = job.options.durability
    if how is None:
        return None
    stored = job.checkpoints.stored
    if not job.world.begun:
        return stored if stored is not None and stored.commit is not None else None
    return stored or Stored(None, 0, how.place)


def _looked(job: JobState) -> frozenset[str]:
    """Hosts with a present agent that has loaded the newest complete checkpoint, or found none."""
    agents = job.roster.agents
    there = ((agents.get(host), host, identity) for host, identity in job.transfers.looked.items())
    return frozenset(host for agent, host, identity in there if agent is not None and agent.identity == identity)


def next_look(job: JobState) -> float | None:
    """When a wait for the newest commit may be over (mono)."""
    times = [job.custody.decision.until, job.transfers.next_look]
    return min((at for at in times if at is not None), default=None)
