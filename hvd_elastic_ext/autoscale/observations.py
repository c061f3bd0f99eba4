"""What policies go by. Sizes are numbers of hosts; times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

STEPS: Final = 20
"""How many steps at one size tell how long a step takes there: their median."""
DRIFT: Final = 0.25
"""Steps that became longer or shorter by this share are those of another program: what was measured before is void."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast training is at one size.

    ``step_s``: seconds of a step, a median; ``steps``: how many it is of. ``busy_s``: the same without the wait for
    other ranks; None if unknown.
    """

    step_s: float
    steps: int
    busy_s: float | None = None

    @property
    def measured(self) -> bool:
        """Whether there are enough steps."""
        return self.steps >= STEPS


@dataclass(frozen=True, slots=True)
class Observations:
    """The input of a policy.

    ``size``: hosts that train now. ``wanted``: hosts that were asked for last. ``speeds``: by size. ``signals``: by
    name, such as ``cpu`` (0 to 1, mean of the hosts), ``iteration`` (seconds of a step), ``queue`` (of any unit), and
    whatever the script passes to ``state.observe``. ``resize_s``: seconds without a step that a change of size costs.
    ``steps``: that were done; ``host_steps``: the same, each times the hosts that did it. ``price``: of a host for an
    hour, a mean; None if unknown.
    """

    size: int
    wanted: int
    speeds: Mapping[int, Speed] = field(default_factory=dict)
    signals: Mapping[str, float] = field(default_factory=dict)
    resize_s: float = 1.0
    steps: float = 0.0
    host_steps: float = 0.0
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a policy wants: so many hosts, and why. ``trial``: to learn how fast training is there.

    ``gain``: what the change brings, as a share of the present work, price of hosts included; None if unknown.
    """

    size: int
    reason: str
    trial: bool = False
    gain: float | None = None


@dataclass(frozen=True, slots=True)
class SpeedLog:
    """The steps that were seen: of each size the newest, in seconds."""

    steps_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    busy_s: tuple[float, ...] = ()
    """Of the same steps at the present size, without the wait for other ranks."""
    before: Mapping[int, Speed] = field(default_factory=dict)
    """Speeds by size as they were when the size was left last."""
    size: int = 0

    def seen(self, size: int, steps_s: Sequence[float], busy_s: Sequence[float] = ()) -> SpeedLog:
        """Add steps at ``size``, oldest first. The first step after a change is not one: it has waited for others."""
        left = self.size if self.size != size else 0
        before = dict(self.before)
        if left in self.steps_s:
            before[left] = _speed(self.steps_s[left], self.busy_s)
        known = () if size != self.size else self.steps_s.get(size, ())
        steps = (*known, *steps_s)[-2 * STEPS :]
        busy = (*(self.busy_s if size == self.size else ()), *busy_s)[-STEPS:]
        log = replace(self, steps_s={size: steps}, busy_s=busy, before=before, size=size)
        return log._without_void()

    def speeds(self) -> dict[int, Speed]:
        """By size. Of the present one what is measured now, once that is enough."""
        now = {size: _speed(steps, self.busy_s) for size, steps in self.steps_s.items() if steps}
        return {
            **self.before,
            **{size: speed for size, speed in now.items() if speed.measured or size not in self.before},
        }

    def _without_void(self) -> SpeedLog:
        """Forget all other sizes if steps at this one are not what they were."""
        steps = self.steps_s.get(self.size, ())
        was = self.before.get(self.size)
        if len(steps) < STEPS:
            return self
        newest, oldest = median(steps[-STEPS:]), median(steps[:STEPS])
        reference = was.step_s if was is not None and was.measured else oldest
        if abs(newest - reference) <= DRIFT * reference:
            return self
        return replace(self, steps_s={self.size: steps[-STEPS:]}, before={})  # and what is measured here counts


def _speed(steps: Sequence[float], busy: Sequence[float]) -> Speed:
    return Speed(median(steps[-STEPS:]), len(steps), median(busy) if busy else None)
