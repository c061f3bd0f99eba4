"""Generates traces from a few numbers and a seed: hosts that fail, and hosts reclaimed with notice or by zones."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS
from hvd_elastic_ext.io.option_parser import nearest
from hvd_elastic_ext.simulate.traces.rows import DAY_S, MAX_DAYS, MAX_HOSTS, MAX_ROWS, Row, Trace, checked

BATCH_S: Final = 60.0
"""Seconds within which a reclaim of a zone removes all its hosts."""


MOST: Final = {
    "untold": 1.0, "diurnal": 1.0, "hosts": MAX_HOSTS, "zones": MAX_HOSTS, "slots": MAX_SLOTS, "days": MAX_DAYS,
}  # fmt: skip
"""The largest value of each number."""
LONGEST_S: Final = 1e10
"""The longest time: 300 years."""


@dataclass(frozen=True, slots=True)
class Synthetic:
    """The numbers. Times are mean seconds. ``mtbf``: between two reclaims of one host. ``notice``: before each;
    ``untold``: the share of reclaims without it. ``back``: until a host returns. ``crash``: between two crashes of a
    process on one host; ``lost``: between two times that the host vanishes. ``zone_mtbf``: between two reclaims of a
    whole zone. ``diurnal``: the share by which all these events are more frequent in the middle of each day than on
    average.
    """

    hosts: int = 8
    slots: int = 1
    days: float = 7.0
    mtbf: float = math.inf
    notice: float = 0.0
    untold: float = 0.0
    back: float = 1800.0
    crash: float = math.inf
    lost: float = math.inf
    zones: int = 1
    zone_mtbf: float = math.inf
    diurnal: float = 0.0

    def events(self) -> float:
        """Return how many events there are, on average."""
        lasts_s = self.days * DAY_S
        goes = 1.0 / self.mtbf + 1.0 / self.lost + 1.0 / self.zone_mtbf
        comes_and_goes = 2.0 * lasts_s / (1.0 / goes + self.back) if goes else 1.0
        return self.hosts * (comes_and_goes + lasts_s / self.crash) + self.zones * lasts_s / self.zone_mtbf

    def trace(self, seed: int) -> Trace:
        """The trace of a seed. Raises :class:`UsageError` if it is too large to be simulated."""
        if self.events() > MAX_ROWS:
            raise UsageError(
                f"--synthetic: makes {self.events():,.0f} events; a trace has at most {MAX_ROWS:,}: give fewer hosts "
                "or days, or longer times"
            )
        return checked(list(_Maker(self, seed).rows()), where="--synthetic", ends=self.days * DAY_S)


def parsed(text: str) -> Synthetic:
    """Read ``mtbf=6h,hosts=16,days=7,notice=2m``. Raises :class:`UsageError`."""
    kinds = {field.name: field.type for field in fields(Synthetic)}
    given: dict[str, float | int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, _, value = part.partition("=")
        if name not in kinds:
            raise UsageError(f"--synthetic: there is no {name!r}; {nearest(name, kinds)}")
        number = durations.parse(value)
        whole = kinds[name] == "int"
        most = MOST.get(name, LONGEST_S)
        least = 0.0 if name in ("notice", "untold", "diurnal", "back") else 1.0 if whole else 1e-3
        if number is None or not least <= number <= most or (whole and number % 1):
            what = "a share from 0 to 1" if most == 1.0 else "a time, such as 6h"
            if whole:
                what = f"a whole number from 1 to {most:,.0f}"
            raise UsageError(f"--synthetic {part}: write {what if name != 'days' else f'days, {MAX_DAYS} at most'}")
        given[name] = int(number) if whole else number
    return Synthetic(**given)  # type: ignore[arg-type]


class _Maker:
    def __init__(self, spec: Synthetic, seed: int) -> None:
        self._spec, self._chance = spec, random.Random(f"hosts {seed}")  # noqa: S311 a simulation
        self._ends = spec.days * DAY_S
        width = len(str(spec.hosts))
        self._names = [f"h{number:0{width}d}" for number in range(1, spec.hosts + 1)]
        self._up = dict.fromkeys(self._names, 0)
        """Number of changes of each host; odd: it is up."""
        self._queue: list[tuple[float, int, str, str, int]] = []
        self._count = 0

    def rows(self) -> Iterator[Row]:
        spec = self._spec
        for name in self._names:
            self._plan(0.0, "up", name, 0)
        for zone in range(spec.zones):
            self._plan(self._gap(spec.zone_mtbf, 0.0), "zone", str(zone), 0)
        while self._queue:
            at, _, what, name, of = heapq.heappop(self._queue)
            if at >= self._ends:
                return
            if what == "zone":
                self._reclaim(at, int(name))
            elif what == "up" and self._up[name] == of:
                yield self._arrival(at, name)
            elif self._up[name] == of and of % 2:
                yield from self._goes(at, what, name, of)

    def _plan(self, at: float, what: str, name: str, of: int) -> None:
        if at < self._ends:
            self._count += 1
            heapq.heappush(self._queue, (round(at, 3), self._count, what, name, of))

    def _arrival(self, at: float, name: str) -> Row:
        spec = self._spec
        of = self._up[name] = self._up[name] + 1
        self._plan(self._gap(spec.mtbf, at), "down", name, of)
        self._plan(self._gap(spec.lost, at), "lost", name, of)
        self._plan(self._gap(spec.crash, at), "crash", name, of)
        return Row(round(at, 3), name, "up", slots=spec.slots)

    def _goes(self, at: float, what: str, name: str, of: int) -> Iterator[Row]:
        spec = self._spec
        if what == "crash":
            self._plan(self._gap(spec.crash, at), "crash", name, of)
            yield Row(at, name, "crash")
            return
        self._up[name] = of + 1
        noticed = what == "down" and self._chance.random() >= spec.untold
        self._plan(at + self._chance.expovariate(1.0) * spec.back, "up", name, of + 1)
        yield Row(at, name, what, spec.notice if noticed else 0.0)

    def _reclaim(self, at: float, zone: int) -> None:
        names = self._names[zone :: self._spec.zones]
        for name in names:
            if self._up[name] % 2:
                self._plan(at + self._chance.random() * BATCH_S, "down", name, self._up[name])
        self._plan(self._gap(self._spec.zone_mtbf, at), "zone", str(zone), 0)

    def _gap(self, mean: float, at: float) -> float:
        """Return the next time of an event that happens once in ``mean`` seconds on average."""
        if mean == math.inf:
            return math.inf
        wave = self._spec.diurnal
        while True:  # draw at the highest rate, and keep a draw with probability rate / highest rate
            at += self._chance.expovariate(1.0) * mean / (1.0 + wave)
            rate = 1.0 - wave * math.cos(2.0 * math.pi * at / DAY_S)
            if at >= self._ends or self._chance.random() * (1.0 + wave) < rate:
                return at
