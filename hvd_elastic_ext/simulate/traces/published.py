"""What the readers of published traces have in common: the hosts of pools over time, values to be assumed, cells.

Most published traces say how many hosts there were. The seed determines which host is removed, and whether that was
announced. A new host has a new name, unless its pool is one machine. What a trace does not say is assumed:
``--assume notice=2m,slots=4``. Cells are read strictly: an error is one line with the place and the expected form.
"""

from __future__ import annotations

import csv
import math
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple, TypeVar

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS
from hvd_elastic_ext.io.option_parser import nearest
from hvd_elastic_ext.simulate.traces.rows import (
    DAY_S,
    MAX_DAYS,
    MAX_HOSTS,
    MAX_ROWS,
    MAX_SLOTS_AT_ONCE,
    Row,
    Trace,
    checked,
    shown,
    whole,
)

T = TypeVar("T")

# --- what is to be assumed

OF_ALL: Final = ("notice", "untold", "slots", "after", "days")
"""Assumptions for every published trace."""
WORDS: Final = ("unit", "type", "zone", "vc")
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Assumed:
    """The values. ``notice``: seconds of notice before a host goes, except for the share ``untold``. ``slots``: slots
    of each host (None: as in the format). ``after``, ``days``: the part of the trace to use.

    ``unit``: unit of the times in a file of counts. ``hosts``: wanted hosts in each zone. ``max_price``: highest price
    of a host for an hour. ``score``: lowest placement score. ``type``, ``zone``: use only these; ``a+b`` means two.
    ``gpus``: number of GPUs of the cluster. ``vc``: the only virtual cluster to use.
    """

    notice: float = 0.0
    untold: float = 0.0
    slots: int | None = None
    after: float = 0.0
    days: float = math.inf
    unit: str = ""
    hosts: int = 8
    max_price: float = math.inf
    score: int = 3
    type: str = ""
    zone: str = ""
    gpus: int | None = None
    vc: str = ""
    given: frozenset[str] = frozenset()
    """The values that were given."""

    def only(self, known: Collection[str], *, where: str, what: str) -> None:
        """Raise :class:`UsageError` if a given value does not apply to this trace."""
        usable = [*OF_ALL, *known]
        wrong = sorted(self.given.difference(usable))
        if wrong:
            raise UsageError(f"--assume {wrong[0]}: {where} is {what}, for which {', '.join(usable)} can be assumed")


NOTHING: Final = Assumed()


def assumptions(text: str) -> Assumed:
    """Read ``notice=2m,slots=4``. Raises :class:`UsageError`."""
    known = [field.name for field in fields(Assumed) if field.name != "given"]
    given: dict[str, Any] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if name not in known:
            raise UsageError(f"--assume: there is no {name!r}; {nearest(name, known)}")
        given[name] = _value(name, value.strip(), part)
    return Assumed(**given, given=frozenset(given))


def _value(name: str, value: str, part: str) -> Any:
    if name == "unit":
        if value not in UNITS:
            raise UsageError(f"--assume {part}: write one of {', '.join(UNITS)}")
        return value
    if name in WORDS:
        if not value:
            raise UsageError(f"--assume {part}: write a name")
        return value
    if name in ("slots", "hosts", "score", "gpus"):
        most = MAX_SLOTS if name == "slots" else MAX_SLOTS_AT_ONCE
        count = whole(value, most)
        if not count:
            raise UsageError(f"--assume {part}: write a whole number from 1 to {most:,}")
        return count
    number = durations.parse(value)
    if number is None or (name == "untold" and number > 1.0) or (name in ("days", "max_price") and not number):
        what = {"untold": "a share from 0 to 1", "days": "a number of days", "max_price": "a price, such as 0.35"}
        raise UsageError(f"--assume {part}: write {what.get(name, 'a time, such as 2m')}")
    return number


# --- how many hosts there are


class Pool(NamedTuple):
    """Hosts of one kind. ``machine``: the pool is one machine of this name."""

    name: str = ""
    kind: str = ""
    slots: int = 1
    machine: bool = False


class Level(NamedTuple):
    """From ``at`` on, a pool has ``hosts``. ``price``: that of one for an hour, if known."""

    at: float
    pool: Pool
    hosts: int
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Levels:
    """Levels in order of time, from the first host on, until ``ends``."""

    levels: tuple[Level, ...]
    ends: float
    where: str
    assumed: Assumed

    def trace(self, seed: int) -> Trace:
        """Return the trace of a seed."""
        rows = sorted(self._rows(seed), key=lambda row: row.at)
        return checked(rows, where=self.where, ends=self.ends)

    def _rows(self, seed: int) -> Iterator[Row]:
        chance = random.Random(f"counts {seed}")  # noqa: S311 a simulation
        there, came, paid = defaultdict[Pool, list[str]](list), defaultdict[Pool, int](int), dict[Pool, float | None]()
        for at, pool, count, price in self.levels:
            here, per_slot = there[pool], None if price is None else price / pool.slots
            while len(here) > count:
                host = here.pop(chance.randrange(len(here)))
                noticed = chance.random() >= self.assumed.untold
                yield Row(at, host, "down", self.assumed.notice if noticed else 0.0)
            if per_slot is not None and paid.get(pool) != per_slot:
                yield from (Row(at, host, "price", price=per_slot) for host in here)
            paid[pool] = per_slot
            while len(here) < count:
                came[pool] += 1
                here.append(_name(pool, came[pool]))
                yield Row(at, here[-1], "up", slots=pool.slots, kind=pool.kind, price=per_slot)


def _name(pool: Pool, number: int) -> str:
    if pool.machine:
        return pool.name
    return f"{pool.name}-{number}" if pool.name else f"h{number}"


def levels(found: Iterable[Level], *, where: str, assumed: Assumed) -> Levels:
    """Return the requested part of a trace. Raises :class:`UsageError` if it has no host."""
    ordered = sorted(found, key=lambda level: level.at)
    if not any(level.hosts for level in ordered):
        raise UsageError(f"{where}: has no host; {_why(assumed)}")
    begins = next(level.at for level in ordered if level.hosts) + assumed.after
    ends = min(begins + assumed.days * DAY_S, ordered[-1].at)
    before = {level.pool: level._replace(at=begins) for level in ordered if level.at <= begins}
    part = [*before.values(), *(level for level in ordered if begins < level.at <= ends)]
    if ends <= begins or not any(level.hosts for level in part):
        raise UsageError(f"{where}: has no hosts in the part that is wanted; change --assume after or days")
    _bound(part, ends - begins, where=where)
    shifted = (level._replace(at=level.at - begins) for level in part)
    return Levels(tuple(shifted), ends - begins, where, assumed)


def _bound(part: Iterable[Level], lasts_s: float, *, where: str) -> None:
    """Raise :class:`UsageError` if a trace is too large to be simulated, before its rows are made."""
    if lasts_s > MAX_DAYS * DAY_S:
        raise UsageError(
            f"{where}: lasts {lasts_s / DAY_S:,.0f} days; a trace has at most {MAX_DAYS}: correct its times, or choose "
            "a part with --assume after=…,days=…"
        )
    there, changes = dict[Pool, int](), 0
    for level in part:
        changes += abs(level.hosts - there.get(level.pool, 0)) + (level.hosts if level.price is not None else 0)
        there[level.pool] = level.hosts
        if level.hosts > MAX_HOSTS or changes > MAX_ROWS:
            what = f"{changes:,} changes of hosts" if level.hosts <= MAX_HOSTS else f"{level.hosts:,} hosts at once"
            raise UsageError(
                f"{where}: has {what}; a trace has at most {MAX_HOSTS:,} hosts and {MAX_ROWS:,} changes: correct it, "
                "or choose a part with --assume days=…"
            )


def _why(assumed: Assumed) -> str:
    limits = [f"{name}={getattr(assumed, name)}" for name in ("max_price", "score", "gpus") if name in assumed.given]
    return f"change --assume {', '.join(limits)}" if limits else "one that has any is needed"


# --- cells of tables

MOST: Final = 1_000_000
"""Largest whole number, such as the GPUs of a job."""
MISSING: Final = ("", "-1", "None", "NA")
"""Spellings of an unknown value in published tables."""


def table(
    text: str, *, where: str, needed: Sequence[str], known: Sequence[str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each row by its columns' names, with its place. Skip a header in the middle, where files were joined.

    Raises :class:`UsageError`.
    """
    header: list[str] = []
    for number, words in enumerate(_lines(text, where=where), 1):
        if not words:
            continue
        if not header:
            header = [word.strip() for word in words]
            wrong = [name for name in header if name not in known]
            lacking = [name for name in needed if name not in header]
            if wrong or lacking:
                what = f"column {shown(wrong[0])} is unknown" if wrong else f"column {lacking[0]!r} is missing"
                raise UsageError(f"{where}:{number}: {what}; these are known: {','.join(known)}")
        elif words != header:
            if len(words) != len(header):
                raise UsageError(
                    f"{where}:{number}: has {len(words)} values for {len(header)} columns; correct it, or leave it out"
                )
            yield f"{where}:{number}", dict(zip(header, map(str.strip, words), strict=True))


def _lines(text: str, *, where: str) -> Iterator[list[str]]:
    reader = csv.reader(text.splitlines())
    try:
        yield from reader
    except csv.Error as error:
        raise UsageError(f"{where}:{reader.line_num}: {error}; correct the line, or leave it out") from None


def cell(place: str, values: Mapping[str, object], name: str, read: Callable[[str], T], *, what: str) -> T:
    """Return one value. Raises :class:`UsageError`."""
    text = str(values.get(name, ""))
    try:
        return read(text)
    except (ValueError, OverflowError):
        raise UsageError(f"{place}: {name} is {shown(text)}; write {what}") from None


def moment(place: str, values: Mapping[str, object], name: str) -> float:
    """Read a time in Unix seconds; a time without a zone is UTC."""
    return cell(place, values, name, _moment, what="a time such as 2020-06-09 18:41:01")


def _moment(text: str) -> float:
    found = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)).timestamp()


def price_of(place: str, values: Mapping[str, object], name: str) -> float:
    """Read the price of a host for an hour."""
    return cell(place, values, name, _price, what="a price such as 0.35")


def _price(text: str) -> float:
    found = float(text)
    if not 0.0 <= found < 1e6:
        raise ValueError
    return found


def count_of(place: str, values: Mapping[str, object], name: str) -> int:
    """Read a whole number, 0 or more."""
    return cell(place, values, name, _number, what=f"a whole number up to {MOST:,}")


def _number(text: str) -> int:
    if (found := whole(text, MOST)) is None:
        raise ValueError
    return found
