"""May a world form, and from which commit? Pure: ``(now, facts, wait_s) → decision with its reason``.

Agents keep the newest commit of each slot in memory. It outlives the process that made it. A host that may not work
(in cooldown, blocked, drained, leaving or not listed) still holds its commits. Only this module decides what follows:

* A world forms only from the newest known commit, as long as a holder can be reached or may come back.
* If the holder takes no part in the world, its agent sends the commit to a member's agent.
* A holder that cannot be reached is waited for, ``wait_s`` (``--commit-wait``) at most, unless it is known to be gone.
* A holder that leaves stays until another host holds the commit, or until its deadline.
* A checkpoint counts like a held commit.
* After that the world forms from the newest commit left. The decision names the loss, its holders, and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from hvd_elastic_ext.launcher.membership.rendezvous import Seat

Commit = tuple[int, int, int]
"""(incarnation, generation, number): of two commits of one job the greater one is the newer."""


ANY_SLOT: Final = -1
"""Slot of a holding that an earlier launcher noted: it knew only the host."""


MIN_S: Final = 0.001
"""Shortest time until a source counts as failed, so that each is tried at least once."""


ASKED_S: Final = 2.0
"""Shortest time that a holder stays, so that its commit can be requested."""


class Reachability(Enum):
    """Whether the agent that owns the memory can be reached."""

    CONNECTED = "connected"
    """Next: NOT_CONNECTED or GONE."""
    NOT_CONNECTED = "not connected"
    """It may come back. Next: CONNECTED, or GONE when its end is reported."""
    GONE = "gone"
    """Its memory is lost."""


class Holding(NamedTuple):
    """The newest commit in the memory of one slot. A tuple, because a decision may need thousands.

    ``step``: optimizer steps in it. ``since``: when the agent last sent a message (mono), if it is not CONNECTED.
    ``why``: what is known of that. ``leaves_by``: when the host will be gone (mono; infinite if unknown), None if it
    stays. ``stale``: noted by an earlier launcher; the slot may hold a newer commit by now. ``told``: a world has
    formed without it, and that loss was reported; saved files have this name.
    """

    seat: Seat
    commit: Commit
    step: int
    reach: Reachability = Reachability.CONNECTED
    since: float = 0.0
    why: str = ""
    leaves_by: float | None = None
    stale: bool = False
    told: bool = False


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
    """A world forms without the newest commit that was ever reported. ``newest``: that commit and its step; ``left``:
    the newest available commit and its step, None if there is none; ``holders``: the hosts that held it; ``why``: why
    it is not available.
    """

    newest: tuple[Commit, int]
    left: tuple[Commit, int] | None
    holders: tuple[str, ...]
    why: str

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
    better = [each for each in better if not each.told]
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
