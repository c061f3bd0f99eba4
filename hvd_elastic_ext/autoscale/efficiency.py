"""Grow while a further host adds enough, give back hosts that do not.

A host is worth having if it adds at least ``share`` of what one host does alone. The best size has the most work beyond
that price: ``rate(n) - share * rate(1) * n``. Where steps get slower with each host, as they do, that is the last size
whose host adds enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Final

from hvd_elastic_ext.autoscale.curve import HOST, Curve, fit
from hvd_elastic_ext.autoscale.observations import STEPS, Observations, Speed, Wish

FIRST_REACH: Final = 2
"""With one size measured, another one up to so many times as large is tried."""
REACH: Final = 4
"""With more sizes measured, one up to so many times the largest of them."""
WORTH: Final = 0.02
"""A change of size has to bring this share of the present rate: less is noise."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """``share``: of one host's own speed that a further host has to add. ``batch``: see :mod:`curve`.

    ``noise``: whether ``state.observe(noise_scale=...)`` counts: samples of larger batches are worth less.
    """

    share: float = 0.5
    batch: str = HOST
    noise: bool = False

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish:
        """The size to have next, within ``least`` and ``most``."""
        here = seen.speeds.get(seen.size)
        if here is None or not here.measured:
            steps = 0 if here is None else here.steps
            return Wish(seen.size, f"{steps} of {STEPS} steps measured at {_hosts(seen.size)}")
        known = {size: speed for size, speed in seen.speeds.items() if speed.measured}
        if len(known) == 1:
            return self._first_trial(seen, least, most)
        curve = self.curve(seen, known)
        reach = min(most, REACH * max(known))
        best = best_size(curve, self.share, least, reach)
        gain = worth(curve, best, self.share) - worth(curve, seen.size, self.share)
        if best == seen.size or gain < WORTH * curve.rate(seen.size):
            return Wish(
                seen.size,
                f"{self._last_adds(curve, seen.size)}; {_hosts(seen.size)} {'is' if seen.size == 1 else 'are'} best",
            )
        if best > seen.size:
            reason = f"{self._last_adds(curve, best)}, at least {self.share:.0%} is wanted"
        else:
            reason = f"{self._last_adds(curve, seen.size)}, less than {self.share:.0%}"
        return Wish(best, reason, trial=best not in known, gain=gain / curve.rate(seen.size))

    def curve(self, seen: Observations, known: Mapping[int, Speed]) -> Curve:
        """The curve of what is measured.

        With a batch for each host, the time without the wait for others tells how fast one host is alone: it was not
        tried as a rule, and what is wanted of a further host is a share of it.
        """
        alone = [speed.busy_s for speed in known.values() if speed.busy_s]
        if self.batch == HOST and alone and 1 not in known:
            known = {**known, 1: Speed(median(alone), STEPS)}
        return fit(known, self.batch, noise_scale=seen.signals.get("noise_scale") if self.noise else None)

    def _first_trial(self, seen: Observations, least: int, most: int) -> Wish:
        up, down = min(most, FIRST_REACH * seen.size), max(least, (seen.size + 1) // FIRST_REACH)
        size = up if up > seen.size else down
        if size == seen.size:
            return Wish(size, "no other size is allowed")
        return Wish(size, f"only {_hosts(seen.size)} measured so far", trial=True)

    def _last_adds(self, curve: Curve, size: int) -> str:
        if size < 2:
            return "one host alone"
        added = (curve.rate(size) - curve.rate(size - 1)) / curve.rate(1)
        return f"host {size} adds {max(0.0, added):.0%} of one host's own speed"


def worth(curve: Curve, size: int, share: float) -> float:
    """Work in a second beyond the price of the hosts."""
    return curve.rate(size) - share * curve.rate(1) * size


def best_size(curve: Curve, share: float, least: int, most: int) -> int:
    """The size that is worth most; of equals the smallest."""
    return max(range(least, max(least, most) + 1), key=lambda size: (worth(curve, size, share), -size))


def _hosts(size: int) -> str:
    return "1 host" if size == 1 else f"{size} hosts"
