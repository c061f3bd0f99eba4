"""Keeps the newest commit: asks ``rules/membership/custody.py`` what may be done, and starts the transfers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Final

from hvd_elastic_ext.launcher.planners.membership import transfers
from hvd_elastic_ext.launcher.rules.membership import custody
from hvd_elastic_ext.launcher.rules.membership.custody import FORMS, Act, Facts, Loss, Stored, Verdict
from hvd_elastic_ext.launcher.rules.membership.next_world import Decision, Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, HeldBack, Plan

log = logging.getLogger(__name__)

ENDS_S: Final = 5.0
"""How long to wait for the end of a killed process; as a rule it is reported at once."""
NOTE_S: Final = 1.0
"""How often the newest commit is saved for the next launcher, which reports losses by that."""
NOTE_EACH_S: Final = 0.002
"""What each slot with a commit adds to that: saving thousands takes a while."""


def why_not(job: JobState) -> HeldBack | None:
    """Start the transfers that the next world needs; why it does not form before they are done."""
    part, decision = job.custody, job.decision
    transfers.look(job)
    part.holds_back = False
    part.may_end_since = {host: at for host, at in part.may_end_since.items() if host in part.asked_for}
    part.asked_for.clear()
    part.verdict = FORMS
    if _calm(job):
        transfers.cancel(job)
        return None
    seats, ready = _candidates(job, decision)
    if not seats and not _leaves_by(job):
        return None
    part.verdict = _judge(job, seats, ready=ready)
    # What members of a world hold is known only when they ask for their ranks; :func:`may_form` is asked then.
    live = any(worker.stage is Stage.LIVE for worker in job.roster.present(decision.members or ()))
    if decision.members is None or live:
        return None
    if part.verdict.act is Act.FORM:
        transfers.cancel(job)  # the memory of a process that is about to train is its own
        return None
    part.holds_back = True
    return HeldBack(part.verdict.reason, part.verdict.until)


def note(job: JobState) -> Plan:
    """Save newer commits for the next launcher from time to time.

    Save at once the first commit, a loss, the answer of a holder that the last launcher noted, and a new world's cost.
    """
    part, commits = job.custody, job.roster.commits
    stale = sum(held.stale for held in commits.held.values())
    known = bool(commits.held), frozenset(commits.gone), stale, job.checkpoints.stored, job.resize.unrecorded
    due = commits.held and job.now - part.noted_at >= NOTE_S + NOTE_EACH_S * len(commits.held)
    if known != part.noted or due:
        part.noted_at, part.noted = job.now, known
        job.save()
    return NOTHING


def may_form(job: JobState) -> tuple[bool, Loss | None]:
    """Whether the members of the newest world, all of which wait for their ranks, may get them.

    Also the loss, if the world forms without the newest commit that was ever reported.
    """
    seats = tuple(life.seat for life in job.world.members)
    plain = job.roster.commits.plain(seats) and not _storage_may_be_newer(job, seats)
    if plain and all(job.now >= until for until in _ending(job).values()):
        transfers.cancel(job)
        job.custody.verdict, job.custody.holds_back = FORMS, False
        return True, None
    job.custody.verdict = verdict = _judge(job, seats, ready=True)
    job.custody.holds_back = verdict.act is not Act.FORM
    if not job.custody.holds_back:
        transfers.cancel(job)
    return not job.custody.holds_back, verdict.loss


def formed(job: JobState, loss: Loss | None) -> int | None:
    """Note that a world has formed. Return the steps that it does again; None if no step is known."""
    progress = job.roster.commits.formed([life.seat for life in job.world.members])
    transfers.formed(job)
    if loss is None:
        return None if progress is None else progress.lost
    stored = job.checkpoints.stored
    if stored is not None and stored.commit is not None and (loss.left is None or stored.commit > loss.left[0]):
        job.checkpoints.stored = None  # it could not be loaded: it is gone or damaged
    lost = max(loss.steps, 0 if progress is None else progress.lost)
    names, at = ", ".join(loss.holders) or "storage", 0 if loss.left is None else loss.left[1]
    cure = "" if job.options.durability is not None else "; --checkpoint-every auto would keep them on storage"
    log.warning("%d steps are lost: the newest commit, of step %d, was held by %s; %s. Training goes on after step "
                "%d%s", lost, loss.newest[1], names, loss.why, at, cure)  # fmt: skip
    return lost


def next_look(job: JobState) -> float | None:
    """When to look again (mono)."""
    times = [job.custody.verdict.until, transfers.next_look(job)]
    return min((at for at in times if at is not None), default=None)


def asks_to_end(job: JobState, host: str) -> None:
    """Note at this look that the agent of a host may end, but for its commit; and since when that is so."""
    job.custody.asked_for.add(host)
    job.custody.may_end_since.setdefault(host, job.now)


def is_needed(job: JobState, host: str) -> bool:
    """Whether the agent of a host has to stay because only it holds the newest commit."""
    since = job.custody.may_end_since.get(host, job.now)
    heard = {name for name, agent in job.roster.agents.items() if agent.heard > since}
    members, leaving = {life.seat.host for life in job.world.members}, _leaves_by(job)
    if _calm(job) and not _is_ahead(job, host) and not members <= leaving.keys():
        return members.isdisjoint(heard)  # a member that is silent since then may be gone with its commit
    facts = _facts(job)
    return custody.is_needed(job.now, host, facts, job.options.commit_wait_s, may_end_since=since, heard=heard)[0]


def launcher_paused(job: JobState, seconds: float) -> None:
    """The launcher was paused: extend what it waits for by that time."""
    job.roster.commits.launcher_paused(seconds)
    transfers.launcher_paused(job, seconds)
    job.custody.may_end_since = {host: since + seconds for host, since in job.custody.may_end_since.items()}
    for worker in job.roster.workers.values():
        worker.killed_at += seconds if worker.killed is not None else 0.0


def is_awaited(job: JobState) -> bool:
    """Whether the only holder of the newest commit is awaited: nothing older may replace that commit yet."""
    return not _calm(job) and custody.awaited(job.now, _facts(job), job.options.commit_wait_s) is not None


# --- facts


def _calm(job: JobState) -> bool:
    """Whether a world trains and has agreed on its state: its members hold the newest commit."""
    return job.standing and job.formed and job.settled


def _is_ahead(job: JobState, host: str) -> bool:
    """Whether a host holds a newer commit than the members of the world that trains."""
    commits = job.roster.commits
    own = commits.of_host(host)
    theirs = (held for life in job.world.members if (held := commits.commit_of(life.seat)) is not None)
    return own is not None and own > max(theirs, default=own)


def _candidates(job: JobState, decision: Decision) -> tuple[tuple[Seat, ...], bool]:
    """Seats that form the next world, or may form it; and whether they form it now."""
    roster = job.roster
    if not job.formed:  # :func:`may_form` decides when all its members wait for their ranks
        return (), False
    if decision.members is not None:
        return tuple(life.seat for life in decision.members), True
    trains = any(worker.killed is None and worker.stage is Stage.LIVE for worker in roster.workers.values())
    enough = job.options.limits.size(len(job.wanted), begun=job.world.begun) > 0
    if trains or not enough:
        return (), False
    return tuple(seat for seat in job.wanted if _joined(job, seat.host)), False


def _facts(job: JobState) -> Facts:
    """Where commits are."""
    how = job.options.durability
    return Facts(
        holdings=job.roster.commits.holdings(_leaves_by(job)),
        stored=_stored(job),
        sending=transfers.sending(job),
        readers=None if how is not None and "://" in how.place else job.checkpoints.readers,
    )


def _facts_for(job: JobState, seats: Iterable[Seat], *, ready: bool) -> Facts:
    """The same, and what else counts for a world of these seats, or for a transfer."""
    members, active = tuple(seats), _active(job)
    joined = {name for name in job.roster.agents if _joined(job, name)}
    keepers = () if members else _keepers(job, joined - _leaves_by(job).keys())
    return replace(
        _facts(job),
        members=members,
        ready=ready,
        writable=frozenset(seat for seat in (*members, *keepers) if seat not in active and seat.host in joined),
        keepers=keepers,
        failing=transfers.failing(job),
        loading=transfers.loading(job),
        looked=transfers.looked(job),
        active=active,
        ending=_ending(job),
    )


def _ending(job: JobState) -> dict[Seat, float]:
    """Seats with a process that was in a world and was killed, and until when its end is awaited."""
    agents = job.roster.agents
    return {
        seat: worker.killed_at + ENDS_S
        for seat, worker in job.roster.workers.items()
        if worker.killed is not None and worker.generation and (agent := agents.get(seat.host)) and agent.joined
    }


def _leaves_by(job: JobState) -> Mapping[str, float]:
    """Hosts that leave, and when (mono): those with notice, and those that are not published any more."""
    told = dict(job.leaves_by)
    for name, agent in job.roster.agents.items():
        if name not in job.fleet.hosts or agent.finishing:
            told.setdefault(name, math.inf)
    return told


def _storage_may_be_newer(job: JobState, seats: Iterable[Seat]) -> bool:
    stored, commits = _stored(job), job.roster.commits
    own = max((held for seat in seats if (held := commits.commit_of(seat)) is not None), default=None)
    return stored is not None and (own is None or (stored.commit is not None and stored.commit > own))


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


# --- acting


def _judge(job: JobState, seats: Iterable[Seat], *, ready: bool) -> Verdict:
    """Ask the rules, and start the transfer that they want."""
    verdict = custody.judge(job.now, _facts_for(job, seats, ready=ready), job.options.commit_wait_s)
    _log(job, verdict)
    if verdict.act not in (Act.SEND, Act.LOAD):
        return verdict
    assert verdict.target is not None
    hosts = {verdict.target.host} | ({verdict.source.seat.host} if verdict.source is not None else set())
    if not transfers.may_begin(job) or not hosts.isdisjoint(job.busy):
        return replace(verdict, act=Act.WAIT)
    if verdict.source is not None:
        transfers.send(job, verdict.source, verdict.target)
    else:
        transfers.load(job, verdict.target)
    return verdict


def _log(job: JobState, verdict: Verdict) -> None:
    what = verdict.reason if verdict.until is not None else ""
    named = what.partition(";")[0]
    if named != job.custody.logged:
        job.custody.logged = named
        if what:
            log.warning("no world is formed yet: %s", what)
