"""How often something fails, believed on the evidence of few failures, or of none. Pure.

What counts as a failure is the caller's choice, and it decides what the rate is good for:

- for durable checkpoints only what takes *every* copy of the commits in memory: all hosts lost at once, or the launcher
  together with the agents, or a host whose part nobody else has. A single host that dies is none: its peers
  hold the commit, and to count it would have checkpoints written far too often;
- for the interval between commits every failure that rolls training back, of any process.

What fails together is one failure. A host that leaves with notice is none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

EVERY_S: Final = 8 * 3600.0
"""Before anything was seen: one failure in so many seconds, of each unit. Too often rather than too seldom: a seal too
many costs little, and quiet hours soon speak for themselves."""
WEIGHT: Final = 0.25
"""Failures that this prior is worth: the first one that is seen counts for four times as much."""
MEMORY: Final = 0.85
"""What is left of all older evidence at each failure: about the last 7 failures count, however long they took."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_s``: failures a second. ``seen``: how many that rests on."""

    per_s: float
    seen: int = 0

    @property
    def every_s(self) -> float:
        """Mean seconds from one failure to the next."""
        return 1.0 / self.per_s


@dataclass(frozen=True, slots=True)
class Failures:
    """What is believed of a rate: failures, and the seconds of all units in which they happened.

    A gamma distribution over the rate with ``count`` as its shape and ``exposure_s``
    as its scale's inverse, which Poisson failures leave a gamma distribution. Its mean
    is what matters: what is lost grows in proportion to the rate, so that the best
    interval for the mean is the best for the whole belief.

    Drift: at each failure all evidence, the prior's too, shrinks to ``MEMORY`` of
    itself, which keeps the mean and widens the belief. To forget by failures and
    not by hours makes it the same for a job that fails every minute and for one
    that fails every week. A rate that falls is seen without that: time without a failure counts, too.
    """

    count: float = WEIGHT
    exposure_s: float = WEIGHT * EVERY_S
    seen: int = 0

    def watched(self, seconds: float, units: int = 1) -> Failures:
        """So many seconds went by in which failures would have been seen.

        ``units``: how many things there were that fail each on its own, at the same rate. For commits these are the
        hosts; for what takes all copies of a commit it is 1, however many hosts hold one.
        """
        return replace(self, exposure_s=self.exposure_s + max(0.0, seconds) * units)

    def failed(self) -> Failures:
        """One failure happened now."""
        return Failures(MEMORY * self.count + 1.0, MEMORY * self.exposure_s, self.seen + 1)

    def told(self) -> dict[str, float]:
        """For JSON. What takes every commit takes the launcher as well, most of the time: a belief that is not kept
        where its successor finds it never gets beyond the prior."""
        return {"count": self.count, "exposure_s": self.exposure_s, "seen": self.seen}

    @classmethod
    def of(cls, told: object) -> Failures:
        """As an earlier launcher told it; the prior if that is no belief."""
        values = [told.get(name) for name in ("count", "exposure_s", "seen")] if isinstance(told, dict) else []
        numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(numbers) < 3 or not all(0.0 < number < math.inf for number in numbers[:2]) or not 0 <= numbers[2] < 1e9:
            return cls()
        return cls(float(numbers[0]), float(numbers[1]), int(numbers[2]))

    def rate(self, units: int = 1) -> Rate:
        """As many units as there are now taken together."""
        return Rate(units * self.count / self.exposure_s, self.seen)
