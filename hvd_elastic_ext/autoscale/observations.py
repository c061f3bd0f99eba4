"""What policies go by. Sizes are numbers of hosts; times are monotonic seconds."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, stdev
from typing import Final

STEPS: Final = 20
"""How many steps at one size tell how long a step takes there: their median."""
ENOUGH: Final = 200
"""More steps at a size are not kept: what is decided by so many stays decided until steps are others."""
DRIFT: Final = 0.25
"""Steps that became longer or shorter by this share are those of another program: what was measured before is void."""
BLOCKS: Final = 10
"""Parts of the steps at a size whose medians tell how sure theirs is: noise that lasts for some steps counts once."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast training is at one size.

    ``step_s``: seconds of a step, a median; ``steps``: how many it is of; ``error``: its standard error, as a share.
    ``busy_s``: the same without the wait for other ranks; None if unknown.
    """

    step_s: float
    steps: int
    busy_s: float | None = None
    error: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether there are enough steps for a first decision."""
        return self.steps >= STEPS

    @property
    def final(self) -> bool:
        """Whether no more steps are waited for."""
        return self.steps >= ENOUGH


@dataclass(frozen=True, slots=True)
class Observations:
    """The input of a policy.

    ``size``: hosts that train now. ``wanted``: hosts that were asked for last. ``speeds``: by size. ``signals``: by
    name, such as ``cpu`` and ``gpu`` (0 to 1, mean of the hosts), ``iteration`` (seconds of a step), ``queue`` (of any
    unit), and whatever the script passes to ``state.observe``. ``resize_s``: seconds without a step that a change of
    size costs. ``steps``: that were done; ``host_steps``: the same, each times the hosts that did it. ``price``: of a
    host for an hour, a mean; None if unknown. ``prices``: of the hosts that train, as far as they are known one by one.
    """

    size: int
    wanted: int
    speeds: Mapping[int, Speed] = field(default_factory=dict)
    signals: Mapping[str, float] = field(default_factory=dict)
    resize_s: float = 1.0
    steps: float = 0.0
    host_steps: float = 0.0
    price: float | None = None
    prices: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a policy wants: so many hosts, and why. ``trial``: to learn how fast training is there.

    ``gain``: what the change brings, as a share of the present work, price of hosts included; None if unknown.
    ``otherwise``: the wish that holds if this trial may not be made now.
    """

    size: int
    reason: str
    trial: bool = False
    gain: float | None = None
    otherwise: Wish | None = None


@dataclass(frozen=True, slots=True)
class SpeedLog:
    """The steps that were seen, in seconds: of each size the first :data:`ENOUGH`. ``busy_s``: the same without the
    wait for other ranks. ``newest``: at the present size, since it is the present one."""

    steps_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    busy_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    newest: tuple[float, ...] = ()
    size: int = 0

    def seen(self, size: int, steps_s: Sequence[float], busy_s: Sequence[float] = ()) -> SpeedLog:
        """Add steps at ``size``, oldest first. The first step after a change is not one: it has waited for others.

        Steps that are not what they were before at this size make everything void but themselves.
        """
        newest = (*(self.newest if size == self.size else ()), *steps_s)[-STEPS:]
        known = self.steps_s.get(size, ())
        if len(newest) == STEPS and len(known) >= STEPS:
            was = median(known[:STEPS])
            if abs(median(newest) - was) > DRIFT * was:
                busy = {size: tuple(busy_s[-STEPS:])} if busy_s else {}
                return SpeedLog({size: newest}, busy, newest, size)
        return replace(
            self,
            steps_s=_with(self.steps_s, size, steps_s),
            busy_s=_with(self.busy_s, size, busy_s),
            newest=newest,
            size=size,
        )

    def speeds(self) -> dict[int, Speed]:
        """By size."""
        return {size: _speed(steps, self.busy_s.get(size, ())) for size, steps in self.steps_s.items() if steps}


def _with(known: Mapping[int, tuple[float, ...]], size: int, more: Sequence[float]) -> Mapping[int, tuple[float, ...]]:
    had = known.get(size, ())
    return known if len(had) >= ENOUGH or not more else {**known, size: (*had, *more)[:ENOUGH]}


@functools.lru_cache(maxsize=64)
def _speed(steps: tuple[float, ...], busy: tuple[float, ...]) -> Speed:
    middle = median(steps)
    return Speed(middle, len(steps), median(busy) if busy else None, _error(steps, middle))


def _error(steps: Sequence[float], middle: float) -> float:
    """Of a median, as a share of it."""
    width = len(steps) // BLOCKS
    if not width or middle <= 0:
        return 1.0
    parts = [median(steps[at * width : (at + 1) * width]) for at in range(BLOCKS)]
    return stdev(parts) / math.sqrt(BLOCKS) / middle
