"""Goodput: useful steps over what the listed hosts could have done since the first of them was listed. Pure.

Both are measured in slot-seconds. A step of a world of N ranks is worth N times the typical time of a step in worlds of
N ranks: the median of the last :data:`RECENT` times that are known. So a slot's speed is that of an undisturbed world
of the same size, whether a step has a batch for each rank or one batch for all. Useful are the steps that are not done
again. The listed hosts could have used all their slots all the time, with those that are about to go; a host that
trains without being listed counts while it trains.

The accounting takes the events of the journal in their order, so it can follow a job. It cannot know what hosts that
were never listed could have done, how much faster a smaller world would be for each of its slots, and that fast hosts
wait for slow ones.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from hvd_elastic_ext.core.journal import Record

RECENT: Final = 100
"""Number of newest times from which the typical time of a step is taken, for each size of the world."""
SHORTEST_S: Final = 0.1
"""A time of a step is taken from steps over at least this many seconds: reports may arrive together."""
PAUSE: Final = 10.0
"""Training has paused if steps take this many times as long as they typically do."""
MAX_WORLDS: Final = 1000
"""Number of newest worlds whose steps can be lost exactly; those of older ones are lost in proportion."""
SLACK_S: Final = 1.0
"""How far the first record of a new launcher may lie before the last one on the same clock."""
LONGEST_S: Final = 1e12
"""Clocks further from 0 are invalid."""
ROUNDING: Final = 1e-6
"""Share by which sums of times may be wrong."""

Fields = Mapping[str, Any]


class Miscounted(AssertionError):
    """The accounting has counted something twice or not at all: a defect of hvd-elastic, not of a job or trace."""


def share(part: float, whole: float, what: str = "useful") -> float:
    """Return ``part / whole``, from 0 to 1; 0 of nothing. Raises :class:`Miscounted` if it is outside."""
    if not (-ROUNDING * (1.0 + whole) <= part <= whole + ROUNDING * (1.0 + whole)):  # false for NaN, too
        raise Miscounted(
            f"{part:.6g} slot-seconds are {what}, of {whole:.6g} that the listed hosts had; this is a defect of "
            "hvd-elastic: please report it, with the trace or journal and the command"
        )
    return min(1.0, max(0.0, part / whole)) if whole > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """Goodput, and what it is computed from."""

    ratio: float | None
    """From 0 to 1; None while the time of a step is not known."""
    useful_s: float
    """Slot-seconds of the useful steps."""
    possible_s: float
    """Slot-seconds of all listed slots."""
    since_s: float
    """Seconds since the first host was listed."""
    stepless_s: float
    """Those of them without a step."""
    kept: int
    """Useful steps of all ranks together."""
    lost: int
    """Steps that are done again."""
    lost_s: float
    """The seconds that they are worth."""


@dataclass(slots=True)
class _Steps:
    """Steps up to ``last`` that follow one another; ``slot_s``: their worth. ``kept``: of all ranks."""

    begin: int
    last: int
    slot_s: float
    kept: int

    def cut(self, step: int) -> float:
        """Drop the steps after ``step``. Return the seconds that they are worth."""
        count = self.last - self.begin
        ranks = self.kept / count
        part = (self.last - step) / count
        lost = self.slot_s * part
        self.slot_s -= lost
        self.kept -= round(self.kept * part)
        self.last = step
        return lost / max(1.0, ranks)


@dataclass(slots=True)
class _World:
    """Steps of the present world."""

    name: object
    size: int
    begin: int
    last: int
    at: float
    """The time of the last one."""
    possible_s: float
    """That of :class:`Accounting` then."""
    first: int
    """Steps up to the first known one."""
    first_s: float
    """The seconds within which they were done."""
    timed_s: float = 0.0
    """Seconds between known steps."""
    typical_s: float = 0.0
    """What these steps typically take."""
    open: int = 0
    """The newest steps, too short to be measured."""
    open_s: float = 0.0
    """The seconds that they took."""
    interval_s: float = 0.0

    def ended(self, step_s: float | None) -> _Steps:
        """Return the steps with their worth, by the typical time of a step."""
        if step_s is None:
            useful_s = self.first_s + self.timed_s
        else:
            typical_s = self.typical_s + self.open * step_s
            useful_s = min(self.first_s, self.first * step_s) + min(self.timed_s, typical_s)
        return _Steps(self.begin, self.last, self.size * useful_s, self.size * (self.last - self.begin))


@dataclass(slots=True)
class _Agreed:
    """The ranks of a world have agreed to continue from a step."""

    name: object
    step: int
    at: float
    possible_s: float


@dataclass(slots=True)
class _Times:
    """The newest times of a step, in their order and sorted."""

    newest: deque[float] = field(default_factory=deque)
    ordered: list[float] = field(default_factory=list)

    def add(self, step_s: float) -> float:
        """Add a time. Return the typical one."""
        self.newest.append(step_s)
        insort(self.ordered, step_s)
        if len(self.newest) > RECENT:
            del self.ordered[bisect_left(self.ordered, self.newest.popleft())]
        return self.typical

    @property
    def typical(self) -> float:
        """The median."""
        return self.ordered[(len(self.ordered) - 1) // 2]


class Accounting:
    """Counts the goodput of one job from its events. Times are monotonic seconds. Values of a wrong type are ignored,
    because a journal is evidence after a crash."""

    def __init__(self) -> None:
        self._now = -math.inf
        self._shift = 0.0
        """Added to the present monotonic clock, which a reboot changes."""
        self._first_at: float | None = None
        self._slots = 0
        self._known: dict[str, int] = {}
        """Slots of each host when it was listed last."""
        self._possible_s = self._trained_s = self._lost_s = self._over_s = 0.0
        self._over_at: float | None = None
        self._lost = 0
        self._past: list[_Steps] = []
        self._settled = _Steps(0, 0, 0.0, 0)
        """What can no longer be lost: the steps of earlier runs."""
        self._world: _World | None = None
        self._agreed: _Agreed | None = None
        self._times: dict[int, _Times] = {}
        self._run: object = None

    # --- what comes in

    def take(self, record: Record) -> None:
        """Take in a record. Records of several launchers may follow one another."""
        if not abs(record.mono) < LONGEST_S:
            return
        if record.event == "started" and record.mono + self._shift < self._now - SLACK_S:
            self._shift = self._now - record.mono  # another clock; the time between is unknown
        self.note(record.event, record.fields, record.mono)

    def note(self, event: str, fields: Fields, now: float) -> None:
        """Take in an event that happens ``now``."""
        self._pass(now + self._shift)
        if (took := _EVENTS.get(event)) is not None:
            took(self, fields)

    def stepped(self, step: int, size: int, world: object, now: float) -> None:
        """Take in a step of rank 0: the same as :meth:`note` for the event, but fast."""
        if abs(now) < LONGEST_S:
            self._pass(now + self._shift)
            self._step(step, size, world)

    def _step(self, step: int, size: int, world: object) -> None:
        here = self._world
        if here is not None and here.last < step and (here.name, here.size) == (world, size):
            self._goes_on(here, step - here.last)
            here.last = step
        else:
            self._begins(step, size, world)

    # --- what comes out

    def step_s(self) -> float:
        """Return the typical time of a step in the newest world with a known one, in seconds; 0 without any."""
        here = self._world
        if here is not None and here.size in self._times:
            return self._times[here.size].typical
        return next((each.typical for each in reversed(self._times.values())), 0.0)

    @property
    def newest_at(self) -> float:
        """The time of the newest event, by its own clock."""
        return self._now - self._shift

    def goodput(self, now: float | None = None) -> Goodput:
        """Return the goodput up to now; without ``now``, up to the newest event. Raises :class:`Miscounted`."""
        ahead_s = 0.0 if now is None or self._first_at is None else max(0.0, now - self.newest_at)
        possible_s = self._possible_s + ahead_s * self._slots
        parts = [self._settled, *self._past]
        tail_s = 0.0
        if self._world is not None:
            parts.append(self._world.ended(self._typical(self._world.size)))
            tail_s = self._now + ahead_s - self._world.at
            tail_s = 0.0 if tail_s > PAUSE * self._world.interval_s else tail_s  # the next step may be under way
        useful_s = math.fsum(each.slot_s for each in parts)
        begun = self._now if self._first_at is None else self._first_at
        since_s = 0.0 if self._first_at is None else self._now + ahead_s - begun - self._over_s
        if self._over_at is not None:
            since_s -= self._now + ahead_s - self._over_at
        known = bool(useful_s or self._lost or self._times)
        return Goodput(
            share(useful_s, possible_s) if known else None,
            useful_s,
            possible_s,
            max(0.0, since_s),
            max(0.0, since_s - self._trained_s - tail_s),
            sum(each.kept for each in parts),
            self._lost,
            self._lost_s,
        )

    # --- time

    def _pass(self, now: float) -> None:
        if now > self._now:
            if self._first_at is not None:
                self._possible_s += self._slots * (now - self._now)
            self._now = now

    def _trains(self, seconds: float, slots: int, *, possible_s: float) -> None:
        """Note that this many slots have trained since the listed ones could do ``possible_s``: unlisted ones count."""
        self._first_at = self._now - seconds if self._first_at is None else self._first_at
        self._trained_s += seconds
        self._possible_s += max(0.0, seconds * slots - (self._possible_s - possible_s))

    # --- hosts

    def _published(self, fields: Fields) -> None:
        listed = fields.get("hosts")
        if not isinstance(listed, Mapping):
            return
        slots = {str(host): count for host, count in listed.items() if _is_count(count)}
        self._known |= slots
        departing = fields.get("departing")
        going = {str(host) for host in departing} if isinstance(departing, list | tuple) else set[str]()
        self._slots = sum(slots.values()) + sum(self._known.get(host, 0) for host in going - slots.keys())
        self._known = {host: self._known[host] for host in self._known if host in slots or host in going}
        if self._slots and self._first_at is None:
            self._first_at = self._now
        self._goes_on_after_end()

    def _finished(self, _: Fields) -> None:
        self._close()
        self._slots = 0
        if self._over_at is None and self._first_at is not None:
            self._over_at = self._now

    def _goes_on_after_end(self) -> None:
        if self._over_at is not None:
            self._over_s += self._now - self._over_at
            self._over_at = None

    # --- steps

    def _stepped(self, fields: Fields) -> None:
        step, size = fields.get("step"), fields.get("size")
        if _is_count(step) and _is_count(size) and not fields.get("rank"):
            self._step(step, size, _world_of(fields))

    def _goes_on(self, here: _World, steps: int) -> None:
        """Count steps since the last known one of the same world."""
        seconds = here.interval_s = self._now - here.at
        times = self._times.get(here.size)
        usual_s = PAUSE * steps * times.typical if times is not None and times.ordered else math.inf
        paused_s = seconds - usual_s / PAUSE if seconds > usual_s else 0.0
        self._trains(seconds, here.size, possible_s=here.possible_s)
        self._trained_s -= paused_s
        here.at, here.possible_s = self._now, self._possible_s
        here.timed_s += seconds
        here.open += steps
        here.open_s += seconds
        if here.open_s >= SHORTEST_S:
            typical = self._times.setdefault(here.size, _Times()).add(here.open_s / here.open)
            here.typical_s += here.open * typical
            here.open, here.open_s = 0, 0.0

    def _begins(self, step: int, size: int, name: object) -> None:
        """The first known step of a world."""
        self._goes_on_after_end()
        self._close()
        newest = self._past[-1].last if self._past else None
        begin, first_s = step - 1 if newest is None else min(newest, step - 1), 0.0
        agreed, self._agreed = self._agreed, None
        if agreed is not None and agreed.name == name and agreed.step < step:
            begin, first_s = agreed.step, self._now - agreed.at
            typical = self._typical(size)
            first_s = first_s if typical is None else min(first_s, (step - begin) * typical)
            self._trains(first_s, size, possible_s=agreed.possible_s)
        self._lose(begin)
        self._first_at = self._now if self._first_at is None else self._first_at
        self._world = _World(name, size, begin, step, self._now, self._possible_s, step - begin, first_s)

    def _synced(self, fields: Fields) -> None:
        """The ranks of a world continue from a step. Steps before it may be unreported; those after it are lost."""
        step = fields.get("step")
        if not (isinstance(step, int) and 0 <= step < 10**15) or fields.get("rank"):
            return
        here = self._world
        typical = None if here is None else self._typical(here.size)
        if here is not None and typical is not None and here.last < step:
            seconds = min(self._now - here.at, (step - here.last) * typical)
            self._trains(seconds, here.size, possible_s=here.possible_s)
            here.timed_s, here.typical_s, here.last = here.timed_s + seconds, here.typical_s + seconds, step
        self._close()
        self._lose(step)
        self._agreed = _Agreed(_world_of(fields), step, self._now, self._possible_s)

    def _anew(self, _: Fields) -> None:
        self._close()
        self._lose(0)

    def _started(self, fields: Fields) -> None:
        run, before = fields.get("run"), self._run
        if run is None or run == before:
            return
        self._run = run
        if before is not None:  # the steps of another run are not done again
            self._close()
            for each in self._past:
                self._settled.slot_s += each.slot_s
                self._settled.kept += each.kept
            self._past.clear()
            self._agreed = None

    def _close(self) -> None:
        here, self._world = self._world, None
        if here is None:
            return
        self._past.append(here.ended(self._typical(here.size)))
        if len(self._past) > MAX_WORLDS:
            one, other = self._past[:2]
            self._past[:2] = [_Steps(one.begin, other.last, one.slot_s + other.slot_s, one.kept + other.kept)]

    def _lose(self, step: int) -> None:
        """Drop all steps after ``step``: they are done again."""
        while self._past and self._past[-1].last > step:
            newest = self._past[-1]
            back = max(newest.begin, step)
            self._lost += newest.last - back
            self._lost_s += newest.cut(back)
            if newest.begin >= back:
                self._past.pop()

    def _typical(self, size: int) -> float | None:
        times = self._times.get(size)
        return None if times is None else times.typical


def accounted(records: Iterable[Record]) -> Accounting:
    """Return the accounting of a journal's records, in the order of its lines."""
    found = Accounting()
    for record in records:
        found.take(record)
    return found


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**15


def _world_of(fields: Fields) -> object:
    """Return the number of the world, if the record has it."""
    world = fields.get("world")
    return world if isinstance(world, int) else None


_EVENTS: Final[Mapping[str, Callable[[Accounting, Fields], None]]] = {
    "started": Accounting._started,
    "published": Accounting._published,
    "stepped": Accounting._stepped,
    "synced": Accounting._synced,
    "training_restarted": Accounting._anew,
    "finished": Accounting._finished,
}
