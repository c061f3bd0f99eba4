"""An estimate of how often something fails, from few failures or none. Pure.

The caller decides what counts: for checkpoints only a loss of *every* copy of the commits in memory, for commits every
failure that rolls training back. Simultaneous failures count as one; a host that leaves with notice counts as none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

EVERY_S: Final = 8 * 3600.0
"""Assumed seconds between failures of each unit at first. Rather too few: an extra checkpoint costs little."""
WEIGHT: Final = 0.25
"""Weight of this assumption, in failures: the first observed failure counts four times as much."""
DECAY_FACTOR: Final = 0.85
"""Each failure multiplies all older evidence by this factor: about the last 7 failures count, over any length of
time."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_s``: failures a second. ``seen``: how many were observed."""

    per_s: float
    seen: int = 0

    @property
    def every_s(self) -> float:
        """Mean seconds from one failure to the next."""
        return 1.0 / self.per_s


@dataclass(frozen=True, slots=True)
class Failures:
    """An estimate of a rate: ``count`` failures in ``exposure_s`` seconds of all units.

    It is a gamma distribution over the rate. Losses are proportional to the rate, so the interval that is best for the
    mean is best for the whole estimate. Each failure multiplies all older evidence by ``DECAY_FACTOR``. The weight of
    evidence depends on later failures and not on hours, so it suits jobs that fail every minute and every week.
    """

    count: float = WEIGHT
    exposure_s: float = WEIGHT * EVERY_S
    seen: int = 0

    def watched(self, seconds: float, units: int = 1) -> Failures:
        """Add ``seconds`` in which a failure would have been observed.

        ``units``: how many things fail independently at this rate: hosts for commits, 1 for a loss of all copies.
        """
        return replace(self, exposure_s=self.exposure_s + max(0.0, seconds) * units)

    def failed(self) -> Failures:
        """One failure happened now."""
        return Failures(DECAY_FACTOR * self.count + 1.0, DECAY_FACTOR * self.exposure_s, self.seen + 1)

    def to_json(self) -> dict[str, float]:
        """For JSON: the next launcher continues with the estimate."""
        return {"count": self.count, "exposure_s": self.exposure_s, "seen": self.seen}

    @classmethod
    def of(cls, data: object) -> Failures:
        """The estimate that :meth:`to_json` gave; the first one for anything else."""
        values = [data.get(name) for name in ("count", "exposure_s", "seen")] if isinstance(data, dict) else []
        numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(numbers) < 3 or not all(1e-9 < number < 1e12 for number in numbers[:2]) or not 0 <= numbers[2] < 1e9:
            return cls()
        return cls(float(numbers[0]), float(numbers[1]), int(numbers[2]))

    def rate(self, units: int = 1) -> Rate:
        """All units of now together."""
        return Rate(units * self.count / self.exposure_s, self.seen)
