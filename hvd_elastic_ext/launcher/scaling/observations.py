"""The input of policies, and what is remembered of step times. Sizes are numbers of hosts; times are monotonic seconds.

Step times are noisy, and noise lasts for several steps: a speed is a median, and its error comes from medians of
blocks. If the step time at a size changes, all earlier measurements are dropped, since the sizes could not be compared
any more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, stdev
from typing import Final

STEPS: Final = 20
"""Number of steps at one size for a first estimate of the step time, their median."""
ENOUGH: Final = 200
"""Most steps kept for a size: a decision from so many steps stays until the step time changes."""
DRIFT: Final = 0.25
"""If the step time changes by this share, all earlier measurements are dropped."""
BLOCKS: Final = 10
"""Number of blocks of steps whose medians give the standard error, so that noise that lasts for several steps counts
once."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of training at one size."""

    step_s: float
    """Median seconds of a step."""
    steps: int
    """How many were measured."""
    busy_s: float | None = None
    """The same median without the wait for other ranks; None if unknown."""
    error: float = 0.0
    """Relative standard error."""

    @property
    def measured(self) -> bool:
        """Whether there are enough steps for a first decision."""
        return self.steps >= STEPS

    @property
    def final(self) -> bool:
        """Whether the measurement is complete."""
        return self.steps >= ENOUGH


@dataclass(frozen=True, slots=True)
class Observations:
    """The input of a policy."""

    size: int
    """Hosts that train now."""
    wanted: int
    """Hosts that were asked for last."""
    speeds: Mapping[int, Speed] = field(default_factory=dict)
    """By size."""
    signals: Mapping[str, float] = field(default_factory=dict)
    """By name, such as ``cpu`` and ``gpu`` (0 to 1, mean of the hosts), ``iteration`` (seconds of a step), ``queue``
    (of any unit), and whatever the script passes to ``state.observe``."""
    resize_s: float = 1.0
    """Seconds without a step that a change of size costs."""
    steps: float = 0.0
    """Steps that were done."""
    host_steps: float = 0.0
    """The same, each times the hosts that did it."""
    price: float | None = None
    """Of a host for an hour, a mean; None if unknown."""
    prices: tuple[float, ...] = ()
    """Of the hosts that train, as far as they are known one by one."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The number of hosts that a policy wants."""

    size: int
    reason: str
    trial: bool = False
    """Only to measure the speed there."""
    gain: float | None = None
    """Of the change, as a share of the present work, price of hosts included; None if unknown."""
    otherwise: Wish | None = None
    """The wish to use if this trial is not allowed now."""


@dataclass(frozen=True, slots=True)
class SpeedLog:
    """Measured steps, in seconds."""

    steps_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """The first :data:`ENOUGH` of each size."""
    busy_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """The same without the wait for other ranks."""
    newest: tuple[float, ...] = ()
    """Those since the last change of size."""
    size: int = 0
    """The size at which the newest were measured."""

    def seen(self, size: int, steps_s: Sequence[float], busy_s: Sequence[float] = ()) -> SpeedLog:
        """Add steps at ``size``, oldest first. The first step after a change does not count, since it waited for
        others. If the step time at this size has changed, all earlier measurements are dropped.
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
        """Return the speeds by size."""
        return {size: _speed(steps, self.busy_s.get(size, ())) for size, steps in self.steps_s.items() if steps}


def _with(known: Mapping[int, tuple[float, ...]], size: int, more: Sequence[float]) -> Mapping[int, tuple[float, ...]]:
    had = known.get(size, ())
    return known if len(had) >= ENOUGH or not more else {**known, size: (*had, *more)[:ENOUGH]}


@functools.lru_cache(maxsize=64)
def _speed(steps: tuple[float, ...], busy: tuple[float, ...]) -> Speed:
    middle = median(steps)
    return Speed(middle, len(steps), median(busy) if busy else None, _error(steps, middle))


def _error(steps: Sequence[float], middle: float) -> float:
    """Return the relative standard error of a median."""
    width = len(steps) // BLOCKS
    if not width or middle <= 0:
        return 1.0
    parts = [median(steps[at * width : (at + 1) * width]) for at in range(BLOCKS)]
    return stdev(parts) / math.sqrt(BLOCKS) / middle
