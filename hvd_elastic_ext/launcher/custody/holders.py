"""Which commit each slot's memory holds, by the agents' reports, and whether its agent can be reached.

A commit has an identity that orders it: (incarnation, generation, number). Each world that forms has a higher
generation, so what it commits is newer than anything that an earlier world has left on a host that is away. What is
known of a holder stays known when its agent is lost, by ``health/silence.py`` or with its connection: the memory may
still be there, and :mod:`custody` decides how long it is waited for. Only an agent that has ended, or a pod that was
replaced, holds nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.launcher.membership.rendezvous import Seat, seat_of

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.custody.custody import Commit


ANY_SLOT: Final = -1
"""Slot of a holding that an earlier launcher noted: it knew only the host."""


class Reachability(Enum):
    """Whether the agent that owns the memory can be reached."""

    CONNECTED = "connected"
    """Next: NOT_CONNECTED or GONE."""
    NOT_CONNECTED = "not connected"
    """It may come back. Next: CONNECTED, or GONE when its end is reported."""
    GONE = "gone"
    """Its memory is lost."""


class Holding(NamedTuple):
    """The newest commit in the memory of one slot. A tuple, because a decision may need thousands."""

    seat: Seat
    commit: Commit
    step: int
    """Optimizer steps in it."""
    reach: Reachability = Reachability.CONNECTED
    since: float = 0.0
    """When the agent last sent a message (mono), if it is not CONNECTED."""
    why: str = ""
    """What is known of that."""
    leaves_by: float | None = None
    """When the host will be gone (mono; infinite if unknown); None if it stays."""
    stale: bool = False
    """Noted by an earlier launcher; the slot may hold a newer commit by now."""
    loss_reported: bool = False
    """A world has formed without it, and its loss was reported then."""


@dataclass(slots=True)
class Held:
    """The newest commit of one slot, as a :class:`Holding` is made from it."""

    commit: Commit
    step: int
    agent: str
    """Identity of the agent that owns the memory."""
    reached: int | None = None
    """The newest step that a process of the slot has reported since the last world formed, if any."""
    away_since: float | None = None
    """The last message of the agent (mono), if it is not connected."""
    why: str = ""
    stale: bool = False
    loss_reported: bool = False


class NotedCommit(NamedTuple):
    """A launcher's note of a host's newest commit for the next launcher, in the fields of :class:`Held`.

    ``gone``: why it is lost; None if the host holds it.
    """

    host: str
    agent: str
    commit: Commit
    step: int
    reached: int | None = None
    loss_reported: bool = False
    gone: str | None = None


class Progress(NamedTuple):
    """The step at which a world continues, and the newest step reached before it."""

    step: int
    reached: int

    @property
    def lost(self) -> int:
        """Steps that are repeated."""
        return max(0, self.reached - self.step)


ORPHANED: Final = "its agent ended while no launcher ran: after --orphan-grace, or with its machine"


@dataclass(slots=True)
class Holders:
    """By seat, commits in memory; and lost ones, until a world has formed without them."""

    held: dict[Seat, Held] = field(default_factory=dict)
    gone: dict[Seat, Held] = field(default_factory=dict)
    _expected: bool = field(default=False, compare=False, repr=False)
    """Some of an earlier launcher's notes may be left in :attr:`held`."""

    def reported(self, seat: Seat, commit: Commit, step: int, *, agent: str) -> None:
        """A slot's memory holds this commit now, by its agent."""
        known = self.held.get(seat)
        reached = known.reached if known is not None and known.agent == agent else None
        self.held[seat] = Held(commit, step, agent, reached)

    def newer(self, seat: Seat, found: tuple[Commit, int] | None, *, agent: str) -> None:
        """The same, unless the report is older than the known commit."""
        if found is not None and found[0] >= (self.commit_of(seat) or found[0]):
            self.reported(seat, *found, agent=agent)

    def forgotten(self, seat: Seat) -> None:
        """A slot's memory was given back."""
        if (held := self.held.get(seat)) is not None:
            self._is_gone(seat, held, "its memory was given back")

    def not_held(self, seat: Seat) -> None:
        """A slot's memory does not hold the commit that was noted, by its agent."""
        if (held := self.held.get(seat)) is not None:
            self._is_gone(seat, held, "its memory does not hold it any more")

    def agent_joined(self, host: str, agent: str, statuses: Mapping[str, Any]) -> None:
        """An agent has joined and reports its slots. A new agent has none of the former one's commits."""
        for seat, held in self._of(host):
            if held.agent != agent and not (held.stale and not held.agent):
                self._is_gone(seat, held, ORPHANED if held.stale else "its agent was replaced by another one")
            elif held.stale:
                self._answered(seat, held, statuses)
            elif not isinstance(statuses.get(str(seat.slot)), dict):
                self._is_gone(seat, held, "its memory was given back")
            else:
                held.away_since, held.why = None, ""
        for number, status in statuses.items():
            named = seat_of(host, number)
            if named is None or not isinstance(status, dict):
                continue
            if (found := read(status.get("held"))) is not None:
                self.reported(named, *found, agent=agent)

    def _answered(self, seat: Seat, held: Held, statuses: Mapping[str, Any]) -> None:
        """A holder that an earlier launcher noted is back, and has reported what its slots hold."""
        del self.held[seat]
        found = [read(status.get("held")) for status in statuses.values() if isinstance(status, dict)]
        if not any(each is not None and each[0] >= held.commit for each in found):
            held.why, held.stale = "its memory does not hold it any more", False
            self.gone[seat] = held

    def agent_lost(self, host: str, *, last_message_at: float, why: str) -> None:
        """A host's agent is not connected any more. ``last_message_at`` is in mono seconds. The agent may come back."""
        for _, held in self._of(host):
            if held.away_since is None:
                held.away_since, held.why = last_message_at, why

    def agent_ended(self, host: str, why: str) -> None:
        """A host's agent has ended, and its memory with it."""
        for seat, held in self._of(host):
            self._is_gone(seat, held, why)

    def world_formed(self, members: Iterable[Seat]) -> Progress | None:
        """A world has formed with the newest available commit. Newer ones were awaited, and are reported as lost.

        Return its step and the newest step before; None if neither is known.
        """
        known, there = [*self.held.values(), *self.gone.values()], map(self.held.get, members)
        reached = max({held.reached for held in known if held.reached is not None}, default=None)
        newest = max([held for held in there if held is not None], key=_age, default=None)
        left = None if newest is None else newest.commit
        for held in known:
            held.reached = None
            held.loss_reported = left is None or held.commit > left
        self.gone.clear()
        if self.stale:
            self.held = {seat: held for seat, held in self.held.items() if not held.stale}
        if newest is None:
            return None if reached is None else Progress(0, reached)
        newest.reached = newest.step
        return Progress(newest.step, newest.step if reached is None else reached)

    def commit_of(self, seat: Seat) -> Commit | None:
        """The commit that a process of this slot continues from; None if there is none."""
        held = self.held.get(seat)
        return None if held is None else held.commit

    def of_host(self, host: str) -> Commit | None:
        """The newest commit on a host with a connected agent."""
        return max((held.commit for _, held in self._of(host) if held.away_since is None), default=None)

    def newest_hosts(self) -> frozenset[str]:
        """Hosts that hold the newest reachable commit."""
        here = {seat: held.commit for seat, held in self.held.items() if held.away_since is None}
        newest = max(here.values(), default=None)
        return frozenset(seat.host for seat, commit in here.items() if commit == newest)

    @property
    def newest(self) -> Commit | None:
        """The newest commit that was ever reported, even if it is lost."""
        return max(map(_age, (*self.held.values(), *self.gone.values())), default=None)

    def covers_newest(self, members: Iterable[Seat]) -> bool:
        """Whether one of ``members`` holds a commit as new as any known: the usual case, and cheap to check."""
        newest = self.newest
        own = (self.held.get(seat) for seat in members)
        has = newest is None or any(held is not None and held.commit == newest for held in own)
        return has and not self.stale

    @property
    def stale(self) -> int:
        """The number of notes of an earlier launcher without an answer."""
        count = sum(held.stale for held in self.held.values()) if self._expected else 0
        self._expected = count > 0
        return count

    def holdings(self, leaves_by: Mapping[str, float]) -> tuple[Holding, ...]:
        """All holdings, for a decision. ``leaves_by``: hosts that will be gone, and when (mono)."""
        here = [
            _holding(seat, held, Reachability.CONNECTED, leaves_by.get(seat.host)) for seat, held in self.held.items()
        ]
        gone = [_holding(seat, held, Reachability.GONE, None) for seat, held in self.gone.items()]
        return (*here, *gone)

    def _of(self, host: str) -> list[tuple[Seat, Held]]:
        return [(seat, held) for seat, held in self.held.items() if seat.host == host]

    def _is_gone(self, seat: Seat, held: Held, why: str) -> None:
        del self.held[seat]
        before = self.gone.get(seat)
        if before is None or before.commit <= held.commit:
            held.why = why
            self.gone[seat] = held

    def launcher_paused(self, seconds: float) -> None:
        """The launcher was paused: extend the time of agents with messages that it has not read yet."""
        for held in self.held.values():
            if held.away_since is not None:
                held.away_since += seconds

    # --- for the next launcher

    def noted(self) -> tuple[NotedCommit, ...]:
        """By host, the newest commit that it holds, and the newest one that it has lost, with the reason."""
        held = [_note(host, held, gone=None) for host, held in _by_host(self.held.items())]
        return (*held, *(_note(host, held, gone=held.why) for host, held in _by_host(self.gone.items())))

    def left_behind(self, saved: Commit | None) -> tuple[NotedCommit, ...]:
        """Commits newer than the ``saved`` one, of a job that has ended."""
        return tuple(
            _note(host, held, gone=held.why or "its agent was ended")
            for host, held in _by_host((*self.held.items(), *self.gone.items()))
            if saved is None or held.commit > saved
        )

    def expect(self, noted: Iterable[NotedCommit], *, now: float) -> None:
        """Load the notes of an earlier launcher: these hosts may hold the noted commits, or newer ones."""
        for host, agent, commit, step, reached, loss_reported, gone in noted:
            seat = Seat(host, ANY_SLOT)
            if gone is not None:
                self.gone[seat] = Held(commit, step, agent, reached, now, gone, loss_reported=loss_reported)
            else:
                why = "it was not heard since the launcher was started again"
                self.held[seat] = Held(commit, step, agent, reached, now, why, stale=True, loss_reported=loss_reported)
                self._expected = True


def _by_host(known: Iterable[tuple[Seat, Held]]) -> Iterable[tuple[str, Held]]:
    """The newest one of each host."""
    newest: dict[str, Held] = {}
    for seat, held in known:
        if seat.host not in newest or newest[seat.host].commit < held.commit:
            newest[seat.host] = held
    return newest.items()


def _note(host: str, held: Held, *, gone: str | None) -> NotedCommit:
    return NotedCommit(host, held.agent, held.commit, held.step, held.reached, held.loss_reported, gone)


_age: Callable[[Held], Commit] = attrgetter("commit")


def read(value: Any) -> tuple[Commit, int] | None:
    """A commit and its step, as an agent writes them: four whole numbers. None for anything else."""
    found = whole_numbers(value, 4)
    return None if found is None else ((found[0], found[1], found[2]), found[3])


def whole_number(value: Any) -> int | None:
    """A number in a message; None for anything else, and beyond 64 bits: times cannot be divided by that."""
    return value if type(value) is int and abs(value) < 1 << 64 else None


def whole_numbers(value: Any, count: int) -> tuple[int, ...] | None:
    """A list of ``count`` such numbers; None for anything else."""
    found = [each for each in map(whole_number, value) if each is not None] if isinstance(value, list) else []
    return tuple(found) if len(found) == count == len(value) else None


def _holding(seat: Seat, held: Held, reach: Reachability, leaves_by: float | None) -> Holding:
    if reach is Reachability.CONNECTED and held.away_since is not None:
        reach = Reachability.NOT_CONNECTED
    since = 0.0 if held.away_since is None else held.away_since
    return Holding(seat, held.commit, held.step, reach, since, held.why, leaves_by, held.stale, held.loss_reported)
