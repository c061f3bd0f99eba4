"""Which commit lies in the memory of which slot, as far as the launcher was told, and what became of its agent.

Facts only. What follows from them is decided in :mod:`hvd_elastic_ext.launcher.rules.membership.custody`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hvd_elastic_ext.launcher.rules.membership.custody import ANY_SLOT, Commit, Holding, Reach
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Seat, seat_of


@dataclass(slots=True)
class Held:
    """The newest commit of one slot. ``agent``: the process that owns the memory, by its own word.

    ``reached``: the newest step that a process of the slot has told of since the last world formed; None: none has.
    ``away_since``: when that was last heard (mono), if it is not connected; ``why``: what is known of that.
    ``stale``: noted by an earlier launcher. ``told``: that it is lost, when a world formed without it.
    """

    commit: Commit
    step: int
    agent: str
    reached: int | None = None
    away_since: float | None = None
    why: str = ""
    stale: bool = False
    told: bool = False


class Progress(NamedTuple):
    """The step at which a world goes on, and the newest one that was reached before it."""

    step: int
    reached: int

    @property
    def lost(self) -> int:
        """Steps that are done again."""
        return max(0, self.reached - self.step)


@dataclass(slots=True)
class Holders:
    """By slot what its memory holds; and what memory held that is gone, until a world has formed without it."""

    held: dict[Seat, Held] = field(default_factory=dict)
    gone: dict[Seat, Held] = field(default_factory=dict)

    def told(self, seat: Seat, commit: Commit, step: int, *, agent: str) -> None:
        """A slot's memory holds this commit now: its agent has looked."""
        known = self.held.get(seat)
        reached = known.reached if known is not None and known.agent == agent else None
        self.held[seat] = Held(commit, step, agent, reached)

    def newer(self, seat: Seat, found: tuple[Commit, int] | None, *, agent: str) -> None:
        """The same, but that it may be old news, of before the agent came again."""
        if found is not None and found[0] >= (self.commit_of(seat) or found[0]):
            self.told(seat, *found, agent=agent)

    def heartbeat(self, seat: Seat, commit: Commit, step: int, *, agent: str) -> None:
        """A process tells its newest commit and its step. That may be older than what its agent has told since."""
        known = self.held.get(seat)
        if known is None or known.agent != agent or known.away_since is not None:
            known = self.held[seat] = Held(commit, step, agent)
        if commit >= known.commit:  # there may be a thousand a second of these
            known.commit, known.step, known.reached = commit, step, step

    def emptied(self, seat: Seat) -> None:
        """A slot's memory was given back."""
        if (held := self.held.get(seat)) is not None:
            self._is_gone(seat, held, "its memory was given back")

    def not_held(self, seat: Seat) -> None:
        """The agent says that a slot's memory does not hold what it was thought to hold."""
        if (held := self.held.get(seat)) is not None:
            self._is_gone(seat, held, "its memory does not hold it any more")

    def came(self, host: str, agent: str, statuses: Mapping[str, Any]) -> None:
        """An agent says what it has, by slot. Another one than before has none of what that one had."""
        for seat, held in self._of(host):
            if held.agent != agent and not (held.stale and not held.agent):
                self._is_gone(seat, held, "its agent was replaced by another one")
            elif held.stale:
                self._answered(seat, held, statuses)
            elif not isinstance(statuses.get(str(seat.slot)), dict):
                del self.held[seat]
            else:
                held.away_since, held.why = None, ""
        for number, status in statuses.items():
            named = seat_of(host, number)
            if named is None or not isinstance(status, dict):
                continue
            if (found := read(status.get("held"))) is not None:
                self.told(named, *found, agent=agent)

    def _answered(self, seat: Seat, held: Held, statuses: Mapping[str, Any]) -> None:
        """The holder that an earlier launcher noted is back: what its slots hold is known from here on."""
        del self.held[seat]
        found = [read(status.get("held")) for status in statuses.values() if isinstance(status, dict)]
        if not any(each is not None and each[0] >= held.commit for each in found):
            held.why, held.stale = "its memory does not hold it any more", False
            self.gone[seat] = held

    def lost(self, host: str, *, heard: float, why: str) -> None:
        """A host's agent is not connected any more; it was last heard at ``heard`` (mono). It may come back."""
        for _, held in self._of(host):
            if held.away_since is None:
                held.away_since, held.why = heard, why

    def ended(self, host: str, why: str) -> None:
        """A host's agent has ended, and its memory with it."""
        for seat, held in self._of(host):
            self._is_gone(seat, held, why)

    def formed(self, members: Iterable[Seat]) -> Progress | None:
        """A world has formed with the newest commit that could be had: nobody waits for the others any more, and
        what is newer is told to be lost.

        Where it goes on, and how far processes had come before; None if no member holds a commit, or none had come far.
        """
        known = [*self.held.values(), *self.gone.values()]
        reached = max((held.reached for held in known if held.reached is not None), default=None)
        newest = max((held for seat in members if (held := self.held.get(seat)) is not None), key=_age, default=None)
        for held in known:
            held.reached = None
            held.told = newest is None or held.commit > newest.commit
        self.gone.clear()
        self.held = {seat: held for seat, held in self.held.items() if not held.stale}
        if newest is None:
            return None if reached is None else Progress(0, reached)
        newest.reached = newest.step
        return Progress(newest.step, newest.step if reached is None else reached)

    def commit_of(self, seat: Seat) -> Commit | None:
        """The commit that a process of this slot takes up; None if there is none."""
        held = self.held.get(seat)
        return None if held is None else held.commit

    def of_host(self, host: str) -> Commit | None:
        """The newest commit on a host whose agent is connected."""
        return max((held.commit for _, held in self._of(host) if held.away_since is None), default=None)

    def newest_hosts(self) -> frozenset[str]:
        """Hosts that hold the newest commit of all that can be reached."""
        here = {seat: held.commit for seat, held in self.held.items() if held.away_since is None}
        newest = max(here.values(), default=None)
        return frozenset(seat.host for seat, commit in here.items() if commit == newest)

    @property
    def newest(self) -> Commit | None:
        """The newest commit that was told of, whether it can still be had or not."""
        return max((held.commit for held in (*self.held.values(), *self.gone.values())), default=None)

    def plain(self, members: Iterable[Seat]) -> bool:
        """Whether one of ``members`` holds a commit as new as any that was told: the usual case, quickly told."""
        newest = self.newest
        own = (self.held.get(seat) for seat in members)
        has = newest is None or any(held is not None and held.commit == newest for held in own)
        return has and not any(held.stale for held in self.held.values())

    def holdings(self, leaves_by: Mapping[str, float]) -> tuple[Holding, ...]:
        """All of them, for a decision. ``leaves_by``: hosts that will be gone, and when (mono)."""
        here = [_holding(seat, held, Reach.HERE, leaves_by.get(seat.host)) for seat, held in self.held.items()]
        gone = [_holding(seat, held, Reach.GONE, None) for seat, held in self.gone.items()]
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
        """The launcher stood still: what agents have said meanwhile is not read yet, and their time is not over."""
        for held in self.held.values():
            if held.away_since is not None:
                held.away_since += seconds

    # --- what outlives the launcher

    def to_json(self) -> list[dict[str, Any]]:
        """The newest commit that each host holds, for the next launcher, and that it held and is gone, with why."""
        held = [_note(host, held, gone=None) for host, held in _by_host(self.held.items())]
        return [*held, *(_note(host, held, gone=held.why) for host, held in _by_host(self.gone.items()))]

    def left_behind(self, saved: Commit | None) -> list[dict[str, Any]]:
        """Notes of what was newer than the commit that was ``saved``, for a job of which nothing runs any more."""
        return [
            _note(host, held, gone=held.why or "its agent was ended")
            for host, held in _by_host((*self.held.items(), *self.gone.items()))
            if saved is None or held.commit > saved
        ]

    def expect(self, noted: Iterable[Any], *, now: float) -> None:
        """Take in what an earlier launcher noted: these hosts may hold what they held, or something newer."""
        for entry in noted:
            found = read([*entry["commit"], entry["step"]]) if _is_note(entry) else None
            if found is None:
                continue
            seat, reached = Seat(entry["host"], ANY_SLOT), at if type(at := entry.get("reached")) is int else None
            told = entry.get("told") is True
            if isinstance(why := entry.get("gone"), str):
                self.gone[seat] = Held(*found, entry["agent"], reached, now, why, told=told)
            else:
                why = "it was not heard since the launcher was started again"
                self.held[seat] = Held(*found, entry["agent"], reached, now, why, stale=True, told=told)


def _by_host(known: Iterable[tuple[Seat, Held]]) -> Iterable[tuple[str, Held]]:
    """The newest one of each host."""
    newest: dict[str, Held] = {}
    for seat, held in known:
        if seat.host not in newest or newest[seat.host].commit < held.commit:
            newest[seat.host] = held
    return newest.items()


def _note(host: str, held: Held, *, gone: str | None) -> dict[str, Any]:
    commit = {"commit": [*held.commit], "step": held.step, "reached": held.reached, "told": held.told}
    return {"host": host, "agent": held.agent, **commit, "gone": gone}


def _age(held: Held) -> Commit:
    return held.commit


def read(value: Any) -> tuple[Commit, int] | None:
    """A commit and its step, as an agent writes them: four whole numbers. None for anything else."""
    if not isinstance(value, list) or len(value) != 4 or not all(type(number) is int for number in value):
        return None
    incarnation, generation, number, step = value
    return (incarnation, generation, number), step


def _is_note(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("host"), str)
        and isinstance(entry.get("agent"), str)
        and isinstance(entry.get("commit"), list)
        and type(entry.get("step")) is int
    )


def _holding(seat: Seat, held: Held, reach: Reach, leaves_by: float | None) -> Holding:
    if reach is Reach.HERE and held.away_since is not None:
        reach = Reach.AWAY
    since = 0.0 if held.away_since is None else held.away_since
    return Holding(seat, held.commit, held.step, reach, since, held.why, leaves_by, held.stale, held.told)
