"""Which processes may share a world, by the training calls that they are in. Pure.

A *training call* is one call of a training function; a process's calls have the numbers 1, 2, 3 and so on. Only
processes in the same call share a world: the *front*, the newest call that the job has come to. A process behind it
catches up: it passes over the calls whose results are in its slot's *past*, and stops at the first one without. A slot
that lacks a result gets the past of another one. A process that has trained, and is behind, is started again for that.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from hvd_elastic_ext.core.call_results import result_of
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

UNKNOWN = -1
"""The call of a process that cannot read its slot's past: it may join any world, and the others send it their results
when the ranks meet."""
NONE_YET = 0
"""The call of a process that has begun none, and cannot be met later, as in an unmodified script: it joins in
``hvd.init()``, and would begin with call 1."""


class InCall(NamedTuple):
    """A living process. ``call``: the one that it is in, as far as is known, or :data:`UNKNOWN`, or :data:`NONE_YET`.

    ``has_state``: it has a trained state. ``done``: its training function has returned.
    """

    seat: Seat
    stage: Stage
    call: int
    has_state: bool = False
    done: bool = False


class Act(Enum):
    """What a process does next."""

    JOINS = "joins"
    """It is in the front: it is a member, or may become one."""
    CATCHES_UP = "catches up"
    """It goes on when the results of :attr:`Standing.source` are in its slot; they are there if that is its own."""
    BEHIND = "behind"
    """It is in a world, and behind. It ends its call, or rolls back and asks for a rank: then :func:`behind` tells."""
    WAITS = "waits"
    """It stays outside."""


class Standing(NamedTuple):
    """``why``: of a process that waits. ``for_good``: it waits until the job ends, or all others have ended."""

    act: Act
    source: Seat | None = None
    why: str = ""
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """``standings``: of all processes except those that start, and have or need no results."""

    front: int
    standings: Mapping[Seat, Standing] = field(default_factory=dict)

    def act(self, seat: Seat) -> Act | None:
        """What the process in a seat does; None if there is nothing to say about it."""
        found = self.standings.get(seat)
        return None if found is None else found.act

    def stage(self, seat: Seat, stage: Stage) -> Stage | None:
        """The stage of a process, as the next world sees it; None if that does not wait for this process."""
        match self.act(seat) if stage is Stage.PARKED else None:
            case Act.CATCHES_UP:
                return Stage.BOOTING
            case Act.WAITS:
                return None
        return stage


def decide(
    processes: Sequence[InCall],
    pasts: Mapping[Seat, int],
    refused: Mapping[int, str],
    *,
    standing: bool,
    stale: Set[Seat] = frozenset(),
    busy: Set[str] = frozenset(),
) -> Gate:
    """Decide. ``pasts``: by seat that can be reached, the number of results in its memory. ``refused``: calls whose
    result was not kept, and why. ``standing``: a world trains, or forms, with all of its members.
    ``stale``: seats whose result of call 0 is of an earlier start of the job. A process that starts there gets that of
    another one. ``busy``: hosts that can send nothing now.
    """

    def rank(seat: Seat) -> tuple[int, bool, bool, Seat]:
        return pasts[seat], seat not in stale, seat.host not in busy, seat

    best = max(pasts, key=rank, default=None)
    newest = max(pasts.keys() - stale, key=rank, default=None) if stale else None
    most = 0 if best is None else pasts[best]
    front = _front(processes, most)
    late = min((each for each in processes if _is_late(each, front)), key=lambda each: each.call, default=None)
    found: dict[Seat, Standing] = {}
    for process in processes:
        seat, stage, call = process.seat, process.stage, process.call
        own = pasts.get(seat, 0)
        if stage is Stage.BOOTING:  # also before its first call
            if best is not None and own < most and own < front:
                found[seat] = Standing(Act.CATCHES_UP, best)
            elif newest is not None and seat in stale:
                found[seat] = Standing(Act.CATCHES_UP, newest)
        elif call == UNKNOWN:
            found[seat] = Standing(Act.JOINS)
        elif call == NONE_YET:
            barred = stage is Stage.PARKED and bool(_lost(1, front, most, refused))
            found[seat] = _waits(front - 1, most, refused) if barred else Standing(Act.JOINS)
        elif stage is Stage.LIVE:
            found[seat] = Standing(Act.JOINS if call >= front else Act.BEHIND)
        elif call >= front:
            waits = late is not None and standing
            why = "" if late is None or not waits else f"{late.seat} is still in call {late.call}"
            found[seat] = Standing(Act.WAITS if waits else Act.JOINS, why=why)
        elif own > call:
            found[seat] = Standing(Act.CATCHES_UP, seat)
        elif best is not None and most > call:
            found[seat] = Standing(Act.CATCHES_UP, best)
        else:
            found[seat] = _waits(call, most, refused)
    return Gate(front, found)


def behind(
    processes: Iterable[InCall], waiting: Container[Seat], refused: Mapping[int, str] = MappingProxyType({})
) -> dict[Seat, str]:
    """Live processes that cannot be in the next world, since they have rolled back in a call that others have ended;
    and why, each.

    ``waiting``: those that have asked for a rank. Only they are judged: their agents pass on all that they have said
    before they ask. Of any other, a message with a later call may be on its way. ``refused`` as in :func:`decide`: one
    that has begun no call is left out if it cannot skip those that are over.
    """
    live = [each for each in processes if each.stage is Stage.LIVE and each.call != UNKNOWN]
    front = max((each.call for each in live if each.has_state or each.seat in waiting), default=UNKNOWN)
    barred = bool(_lost(1, front, 0, refused))
    late = [each for each in live if each.call < front and each.seat in waiting]
    late = [each for each in late if each.call > NONE_YET or barred]
    return {each.seat: f"{each.seat} is still in call {max(1, each.call)}, others are in call {front}" for each in late}


def _front(processes: Sequence[InCall], most: int) -> int:
    """The newest call that the job has come to."""
    known = [each for each in processes if each.call > NONE_YET]
    trained = max((each.call for each in known if each.has_state and each.stage is Stage.LIVE), default=0)
    parked = max((each.call for each in known if each.stage is Stage.PARKED), default=0)
    reached = most if not trained and any(each.stage is not Stage.LIVE for each in known) else 0
    return max(1, trained, parked, reached)


def _is_late(process: InCall, front: int) -> bool:
    return process.stage is Stage.LIVE and NONE_YET < process.call < front and not process.done


def _waits(call: int, most: int, refused: Mapping[int, str]) -> Standing:
    """A process whose call is over, and nobody who can be reached has its result."""
    if lost := _lost(most, call + 1, most, refused):
        return Standing(Act.WAITS, why=f"{result_of(lost[0])} was not kept: {refused[lost[0]]}", for_good=True)
    return Standing(Act.WAITS, why=f"no result of call {call} can be reached")


def _lost(first: int, end: int, most: int, refused: Mapping[int, str]) -> list[int]:
    """The calls from ``first`` to the one before ``end`` whose result nobody can have."""
    return [number for number in sorted(refused) if max(first, most) <= number < end]
