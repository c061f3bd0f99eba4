"""The number of hosts of a pool over time, the content of most published traces.

The seed determines which host is removed, and whether that was announced. A new host has a new name, unless its pool is
one machine.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces.assumed import Assumed
from hvd_elastic_ext.simulate.traces.rows import DAY_S, MAX_DAYS, MAX_HOSTS, MAX_ROWS, Row, Trace, checked


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
