"""May a world form, and from which commit?

Agents keep the newest commit of each slot in memory. It outlives the process that made it. A host that may not work
(in cooldown, blocked, drained, leaving or not listed) still holds its commits. Only this module decides what follows
(:func:`decide`, pure):

* A world forms only from the newest known commit, as long as a holder can be reached or may come back.
* If the holder takes no part in the world, its agent sends the commit to a member's agent (:mod:`transfers`).
* A holder that cannot be reached is waited for, ``wait_s`` (``--commit-wait``) at most from its last message, unless it
  is known to be gone.
  That its host is silent says nothing about its memory: the agent may come back with it. ``health/silence.py`` tells
  :mod:`holders` that an agent is lost; a member with a commit as new makes the wait unnecessary.
* A holder that leaves stays until another host holds the commit, or until its deadline.
* A checkpoint counts like a held commit: it is loaded if it is newer than what connected agents hold, also while a
  holder is waited for that may have a newer one.
* When no holder is waited for any more, the world forms from the newest commit left. The decision names the loss, its
  holders, and the reason.

It is asked twice for each world: before its members are called (:func:`why_not`), by what agents have reported, and
when they have asked for their ranks (:func:`may_form`), by what they hold then.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.launcher.custody import holders, transfers
from hvd_elastic_ext.launcher.custody.holders import Reachability
from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.driver.actions import NOTHING, HeldBack
from hvd_elastic_ext.launcher.driver.words import Wait
from hvd_elastic_ext.launcher.membership import calls
from hvd_elastic_ext.launcher.membership.rendezvous import Seat, seat_of
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.custody.holders import Holding
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent

log = logging.getLogger(__name__)


Commit = tuple[int, int, int]
"""(incarnation, generation, number): of two commits of one job the greater one is the newer."""
MIN_S: Final = 0.001
"""Shortest time until a source counts as failed, so that each is tried at least once."""
ASKED_S: Final = 2.0
"""Shortest time that a holder stays, so that its commit can be requested."""


class Stored(NamedTuple):
    """The newest checkpoint on storage. ``commit`` is None if only its step is known."""

    commit: Commit | None
    step: int
    path: str


@dataclass(frozen=True, slots=True)
class CustodyFacts:
    """The input of a decision."""

    holdings: tuple[Holding, ...] = ()
    members: tuple[Seat, ...] = ()
    """Seats that would form the world, the preferred receiver first; empty if there is none."""
    ready: bool = False
    """The members would form it now."""
    writable: frozenset[Seat] = frozenset()
    """Seats whose memory may be written: without a process, or with one that does not train yet or awaits its rank."""
    keepers: tuple[Seat, ...] = ()
    """Seats on hosts that stay, which may receive the commit of a leaving host."""
    stored: Stored | None = None
    failing: Mapping[Seat, float] = field(default_factory=dict)
    """By seat of a holder, for how many seconds all tries in a row to send its commit have failed."""
    loading: float = 0.0
    """The same for tries to load the checkpoint."""
    looked: frozenset[str] = frozenset()
    """Hosts that have loaded the newest complete checkpoint, or found none."""
    active: frozenset[Seat] = frozenset()
    """Seats with a process that may still commit: it has not ended and does not wait for its rank."""
    ending: Mapping[Seat, float] = field(default_factory=dict)
    """Seats with a killed process, and until when its end is awaited (mono). Its memory may hold a newer commit."""
    sending: Seat | None = None
    """The seat whose commit is being sent."""
    readers: frozenset[str] | None = None
    """Hosts that are known to reach the storage of ``stored``; None: all do."""

    def is_stored(self, each: Holding) -> bool:
        """Whether hosts other than its holder have a checkpoint as new, as far as known."""
        stored = None if self.stored is None else self.stored.commit
        others = self.readers is None or bool(self.readers - {each.seat.host})
        return stored is not None and stored >= each.commit and others


class CustodyAction(Enum):
    """The next action."""

    FORM = "form"
    """The world may form. Without members: nothing is to be done."""
    WAIT = "wait"
    """The world may not form yet. Next: any."""
    SEND = "send"
    """The world may not form until ``source`` has sent its commit to ``target``."""
    LOAD = "load"
    """The world may not form until ``target`` has loaded the newest checkpoint."""


@dataclass(frozen=True, slots=True)
class CommitLoss:
    """A world forms without the newest commit that was ever reported."""

    newest: tuple[Commit, int]
    """That commit and its step."""
    left: tuple[Commit, int] | None
    """The newest available commit and its step; None if there is none."""
    holders: tuple[str, ...]
    """The hosts that held the newest one."""
    why: str
    """Why it is not available."""

    @property
    def steps(self) -> int:
        """Number of steps that training repeats."""
        return max(0, self.newest[1] - (0 if self.left is None else self.left[1]))


@dataclass(frozen=True, slots=True)
class CustodyDecision:
    """``until``: when time alone may change it (mono)."""

    act: CustodyAction
    reason: str
    until: float | None = None
    source: Holding | None = None
    target: Seat | None = None
    loss: CommitLoss | None = None

    @property
    def transfers(self) -> bool:
        """Whether a commit has to be sent or loaded first."""
        return self.act in (CustodyAction.SEND, CustodyAction.LOAD)


FORMS: Final = CustodyDecision(CustodyAction.FORM, "the newest commit is there")


def decide(now: float, facts: CustodyFacts, wait_s: float) -> CustodyDecision:
    """Whether the members may form a world, and if not, the next action. See the module."""
    if not facts.members:
        return _copy_from_leaving_host(facts, wait_s)
    if not facts.holdings and facts.stored is None:
        return FORMS
    if facts.ready and (ending := {seat: until for seat, until in facts.ending.items() if now < until}):
        names = ", ".join(map(str, sorted(ending)))
        return CustodyDecision(CustodyAction.WAIT, f"killed, and not ended yet: {names}", min(ending.values()))
    members = frozenset(facts.members)
    at_hand = _newest(each for each in facts.holdings if each.seat in members and each.reach is Reachability.CONNECTED)
    better = [each for each in facts.holdings if _newer(each, at_hand)]
    source = _newest(each for each in better if _can_send(each, facts, wait_s))
    if source is not None and source.seat in facts.active:
        return CustodyDecision(
            CustodyAction.WAIT, f"{source.seat} holds the newest commit, and its process has not ended yet"
        )
    if _storage_is_newer(facts, at_hand, source) and _may_load(facts, wait_s):
        return _load(facts)
    if source is not None:
        return _send(source, facts.members, facts)
    if not facts.ready:
        return CustodyDecision(CustodyAction.WAIT, "the members are not ready")
    awaited = {each: until for each in better if (until := _awaited_until(now, each, wait_s)) is not None}
    if awaited:
        return CustodyDecision(CustodyAction.WAIT, _waiting(awaited, now), min(awaited.values()))
    return CustodyDecision(CustodyAction.FORM, FORMS.reason, loss=_loss(facts, at_hand, better))


def is_needed(
    now: float, host: str, facts: CustodyFacts, wait_s: float, *, may_end_since: float, heard: Container[str]
) -> tuple[bool, str]:
    """Whether an agent that may end has to stay, because no host that stays holds a commit as new.

    ``may_end_since``: since when it may end (mono). ``heard``: hosts that have sent messages since then; others may be
    gone with their commits. The agent stays at most ``wait_s`` from then on, or to the deadline of its notice if that
    is later, and until a running transfer has ended. (A host that is still there after its deadline still holds its
    commit.)
    """
    own = _newest(each for each in facts.holdings if each.seat.host == host and each.reach is Reachability.CONNECTED)
    if own is None:
        return False, "it holds no commit"
    if facts.sending is not None and facts.sending.host == host:
        return True, f"its commit, of step {own.step}, is being sent"
    until = may_end_since + max(wait_s, ASKED_S)
    if own.leaves_by is not None and own.leaves_by < math.inf:
        until = max(until, own.leaves_by)
    if now >= until:
        return False, "its time is over"
    elsewhere = (each for each in facts.holdings if each.seat.host != host and each.seat.host in heard)
    others = _newest(each for each in elsewhere if _stays(each))
    if others is not None and others.commit >= own.commit:
        return False, f"{others.seat.host} holds a commit as new"
    if facts.stored is not None and facts.is_stored(own):
        return False, f"{facts.stored.path}, of step {facts.stored.step}, is as new"
    return True, f"only {host} holds the newest commit, of step {own.step}"


def awaited(now: float, facts: CustodyFacts, wait_s: float) -> float | None:
    """Until when a holder of a commit newer than all available ones is awaited (mono); None if none is."""
    here = _newest(each for each in facts.holdings if each.reach is Reachability.CONNECTED)
    stored = None if facts.stored is None else facts.stored.commit
    times = [
        until
        for each in facts.holdings
        if _newer(each, here) and (stored is None or each.commit > stored)
        if (until := _awaited_until(now, each, wait_s)) is not None
    ]
    return min(times, default=None)


def _copy_from_leaving_host(facts: CustodyFacts, wait_s: float) -> CustodyDecision:
    """There are no members. Send a commit that only a leaving host holds to a host that stays."""
    here = [each for each in facts.holdings if each.reach is Reachability.CONNECTED]
    staying = _newest(each for each in here if _stays(each))
    leaving = [each for each in here if not _stays(each) and _newer(each, staying)]
    source = _newest(each for each in leaving if _can_send(each, facts, wait_s))
    if source is None or source.seat in facts.active or not facts.keepers:
        return FORMS
    if facts.is_stored(source):
        return FORMS
    return _send(source, facts.keepers, facts)


def _send(source: Holding, targets: tuple[Seat, ...], facts: CustodyFacts) -> CustodyDecision:
    """Have the commit sent to the first target that can take it; within the host if possible."""
    what = f"the newest commit, of step {source.step}, is held by {source.seat.host} only"
    free = [seat for seat in targets if seat in facts.writable and seat != source.seat]
    leaving = {each.seat.host for each in facts.holdings if each.leaves_by is not None}
    free.sort(key=lambda seat: (seat.host in leaving, seat.host != source.seat.host))
    if not free:
        return CustodyDecision(CustodyAction.WAIT, f"{what}, and no member can take it yet")
    return CustodyDecision(CustodyAction.SEND, f"{what}: it is sent to {free[0].host}", source=source, target=free[0])


def _load(facts: CustodyFacts) -> CustodyDecision:
    assert facts.stored is not None
    where = f"the newest commit, of step {facts.stored.step}, is in {facts.stored.path}"
    target = next((seat for seat in facts.members if seat in facts.writable and seat.host not in facts.looked), None)
    if target is None:
        return CustodyDecision(CustodyAction.WAIT, f"{where}, and no member can load it yet")
    return CustodyDecision(CustodyAction.LOAD, f"{where}: {target.host} loads it", target=target)


def _storage_is_newer(facts: CustodyFacts, at_hand: Holding | None, source: Holding | None) -> bool:
    """Whether the checkpoint is newer than all commits that memory can give."""
    if facts.stored is None:
        return False
    best = max((each.commit for each in (at_hand, source) if each is not None), default=None)
    return best is None or (facts.stored.commit is not None and facts.stored.commit > best)


def _may_load(facts: CustodyFacts, wait_s: float) -> bool:
    untried = any(seat.host not in facts.looked for seat in facts.members)
    return untried and facts.loading < max(wait_s, MIN_S)


def _can_send(each: Holding, facts: CustodyFacts, wait_s: float) -> bool:
    """Whether a holder can send its commit. One that has failed for too long is not asked again."""
    given_up = facts.failing.get(each.seat, 0.0) >= max(wait_s, MIN_S)
    return each.reach is Reachability.CONNECTED and not given_up


def _awaited_until(now: float, each: Holding, wait_s: float) -> float | None:
    """Until when to wait for a holder that is not connected (mono); None if the wait is over or useless."""
    if each.reach is not Reachability.NOT_CONNECTED:
        return None
    until = each.since + wait_s
    if each.leaves_by is not None:
        until = min(until, each.leaves_by)
    return until if now < until else None


def _newer(each: Holding, than: Holding | None) -> bool:
    return than is None or each.commit > than.commit or (each.stale and each.reach is Reachability.NOT_CONNECTED)


def _newest(holdings: Iterable[Holding]) -> Holding | None:
    return max(holdings, key=lambda each: each.commit, default=None)


def _stays(each: Holding) -> bool:
    return each.reach is Reachability.CONNECTED and each.leaves_by is None


def _waiting(awaited: Mapping[Holding, float], now: float) -> str:
    names = ", ".join(sorted({each.seat.host for each in awaited}))
    left_s = min(awaited.values()) - now
    what = "may hold a newer commit" if all(each.stale for each in awaited) else "held the newest commit"
    return f"not connected: {names}, which {what}; waiting {left_s:.0f} s more (--commit-wait)"


def _loss(facts: CustodyFacts, at_hand: Holding | None, better: Iterable[Holding]) -> CommitLoss | None:
    """The commit that the world forms without; None if there is none, or if the loss was reported for an earlier
    world."""
    left = None if at_hand is None else (at_hand.commit, at_hand.step)
    better = [each for each in better if not each.loss_reported]
    steps = {each.commit: each.step for each in better}
    stored = facts.stored
    if stored is not None and stored.commit is not None:
        steps[stored.commit] = max(stored.step, steps.get(stored.commit, 0))
    newest = max(steps, default=None)
    if newest is None or (left is not None and newest <= left[0]):
        return None
    holders = {each.seat.host: each for each in better if each.commit == newest}
    why = [f"{host} {_why_not(each)}" for host, each in sorted(holders.items())]
    if stored is not None and stored.commit == newest:
        why.append(f"{stored.path} could not be loaded")
    return CommitLoss((newest, steps[newest]), left, tuple(sorted(holders)), "; ".join(why))


def _why_not(each: Holding) -> str:
    match each.reach:
        case Reachability.CONNECTED:
            return "could not send it in time"
        case Reachability.NOT_CONNECTED:
            return f"did not come back in time ({each.why or 'it cannot be reached'})"
        case Reachability.GONE:
            return f"is gone ({each.why or 'its agent has ended'})"


# --- state


@dataclass(slots=True)
class Custody:
    """The decision about the newest commit, and what was saved of it for the next launcher."""

    noted_at: float
    noted: tuple[bool, frozenset[Seat], int, Stored | None, int | None] = (False, frozenset(), 0, None, None)
    may_end_since: dict[str, float] = field(default_factory=dict)
    """By host, since when its agent would have ended without its commit (mono)."""
    asked_for: set[str] = field(default_factory=set)
    """Hosts with agents that would have ended since the last look."""
    decision: CustodyDecision = FORMS
    holds_back: bool = False
    """A world would form now, or its members would get their ranks, but waits for a commit."""
    needs_none: bool = False
    """No transfer is needed, by the newest look: one under way is stopped."""
    logged: str = ""

    def asks_to_end(self, host: str, now: float) -> None:
        """Note that the agent of a host may end, except for its commit, and since when."""
        self.asked_for.add(host)
        self.may_end_since.setdefault(host, now)


# --- what follows from the state


def keeps_something(job: JobState) -> bool:
    """Whether a commit or a checkpoint is known of, from which another world may go on."""
    return job.loopless.kept or job.roster.commits.newest is not None or job.checkpoints.known


ENDS_S: Final = 5.0
"""Longest wait for the end of a killed process; usually it is reported at once."""


def is_needed_of(job: JobState, host: str) -> bool:
    """Whether the agent of a host has to stay because only it holds the newest commit."""
    since = job.custody.may_end_since.get(host, job.now)
    heard = {name for name, agent in job.roster.agents.items() if agent.last_message_at > since}
    members, leaving = {life.seat.host for life in job.world.members}, notices.leaving_or_unlisted(job)
    if is_in_sync(job) and not _is_ahead(job, host) and not members <= leaving.keys():
        return members.isdisjoint(heard)  # a member without a message since then may be gone with its commit
    facts = _facts(job)
    return is_needed(job.now, host, facts, job.options.commit_wait_s, may_end_since=since, heard=heard)[0]


def is_awaited(job: JobState) -> bool:
    """Whether the only holder of the newest commit is awaited: nothing older may replace that commit yet."""
    return not is_in_sync(job) and awaited(job.now, _facts(job), job.options.commit_wait_s) is not None


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
        holdings=job.roster.commits.holdings(notices.leaving_or_unlisted(job)),
        stored=_stored(job),
        sending=job.transfers.sending or job.calls.sending,
        readers=None if how is not None and "://" in how.place else job.checkpoints.readers,
    )


def facts_for(job: JobState, seats: Iterable[Seat], *, ready: bool) -> CustodyFacts:
    """The same, with the other facts for a world of these seats, or for a transfer."""
    members, active = tuple(seats), _active(job)
    joined = {name for name in job.roster.agents if _joined(job, name)}
    keepers = () if members else _keepers(job, joined - notices.leaving_or_unlisted(job).keys())
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


def waits(job: JobState) -> Wait | None:
    """A world could form, and does not before the newest commit is where it is needed."""
    if not job.custody.holds_back:
        return None
    ends = "it ends when that commit has arrived, or its holder is gone"
    return Wait(f"for the newest commit: {job.custody.decision.reason}", job.custody.decision.until, ends=ends)


# --- what happens


def in_memory(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """Note which commit a slot's memory holds after its process or a helper has ended."""
    slot, event, slots, known = news.get("slot"), news.get("event"), news.get("slots"), job.roster.commits
    if not agent.joined:
        return
    calls.note_held(job, agent, news)
    host = agent.host.name
    if event == "forgotten" and isinstance(slot, int):
        known.forgotten(Seat(host, slot))
    elif event == "held" and isinstance(slots, dict):
        for number, each in slots.items():
            if (seat := seat_of(host, number)) is not None:
                known.newer(seat, holders.read(each), agent=agent.identity)
    elif "held" in news and isinstance(slot, int):
        known.newer(Seat(host, slot), holders.read(news["held"]), agent=agent.identity)


def custody_decision(job: JobState, seats: Sequence[Seat], *, ready: bool) -> CustodyDecision:
    """Ask the rules whether a world of ``seats`` may form, and what has to be sent first."""
    if ready and has_newest(job, seats):
        decision = FORMS
    else:
        decision = decide(job.now, facts_for(job, seats, ready=ready), job.options.commit_wait_s)
    _log(job, decision)
    return decision


def _log(job: JobState, decision: CustodyDecision) -> None:
    what = decision.reason if decision.until is not None else ""
    named = what.partition(";")[0]
    if named != job.custody.logged:
        job.custody.logged = named
        if what:
            log.warning("no world is formed yet: %s", what)


def may_form(job: JobState) -> tuple[bool, CommitLoss | None]:
    """Whether the members of the newest world, which all wait for their ranks, may get them.

    Also the loss, if the world forms without the newest commit that was ever reported.
    """
    seats = tuple(life.seat for life in job.world.members)
    plain = job.roster.commits.covers_newest(seats) and not storage_may_be_newer(job, seats)
    if plain and all(job.now >= until for until in ending(job).values()):
        transfers.cancel(job)
        job.custody.decision, job.custody.holds_back = FORMS, False
        return True, None
    job.custody.decision = decision = custody_decision(job, seats, ready=True)
    job.custody.holds_back = decision.act is not CustodyAction.FORM
    if job.custody.holds_back:
        transfers.begin(job, decision)
    else:
        transfers.cancel(job)
    return not job.custody.holds_back, decision.loss


def world_formed(job: JobState, loss: CommitLoss | None) -> int | None:
    """Note that a world has formed. Return the number of steps that it repeats; None if no step is known."""
    progress = job.roster.commits.world_formed([life.seat for life in job.world.members])
    transfers.world_formed(job)
    if (
        loss is None
        and job.in_place
        and any(worker.averages and worker.agreed for worker in job.roster.present(job.world.members))
    ):
        return 0  # the members that were in the world before go on from where they are
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


# --- planner


NOTE_S: Final = 1.0
"""How often the holders of the newest commit are saved for the next launcher, which can then report losses."""
NOTE_EACH_S: Final = 0.002
"""What each slot with a commit adds to that: saving thousands takes a while."""


def why_not(job: JobState) -> HeldBack | None:
    """Why the next world does not form before the newest commit is available. ``transfers`` moves it."""
    part = job.custody
    part.decision, part.holds_back, part.needs_none = FORMS, False, is_in_sync(job)
    if part.needs_none:
        return None
    seats, ready = candidates(job)
    if not seats and not notices.leaving_or_unlisted(job):
        return None
    part.decision = custody_decision(job, seats, ready=ready)
    members = job.decision.members
    # The commits of members of a world are known only when they ask for their ranks; ``may_form`` decides then.
    if members is None or any(worker.stage is Stage.LIVE for worker in job.roster.present(members)):
        return None
    part.needs_none = (
        part.decision.act is CustodyAction.FORM
    )  # the memory of a process that is about to train is its own
    part.holds_back = not part.needs_none
    return HeldBack(part.decision.reason, part.decision.until) if part.holds_back else None


def note(job: JobState) -> Plan:
    """Save newer commits for the next launcher from time to time.

    Save at once the first commit, a loss, the answer of a holder that the last launcher noted, and a new world's cost.
    """
    part, commits = job.custody, job.roster.commits
    known = bool(commits.held), frozenset(commits.gone), commits.stale, job.checkpoints.stored, job.resize.unrecorded
    due = commits.held and job.now - part.noted_at >= NOTE_S + NOTE_EACH_S * len(commits.held)
    if known != part.noted or due:
        part.noted_at, part.noted = job.now, known
        job.save()
    return NOTHING
