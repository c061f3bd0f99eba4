"""Policies with a budget: finish by a time, or spend at most an amount per hour."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final

from hvd_elastic_ext.launcher.scaling.curve import GLOBAL, Curve
from hvd_elastic_ext.launcher.scaling.efficiency import Efficiency
from hvd_elastic_ext.launcher.scaling.observations import Observations, Wish

MARGIN: Final = 0.1
"""Share of the remaining time that is reserved for unforeseen delays."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The fewest hosts that finish in time. ``by``: mono; ``work``: all of it, in steps; with a batch for each
    host, in steps of one host.

    Rates come from the curve of an efficiency policy, which also makes trials.
    """

    by: float
    work: float
    learn: Efficiency = field(default_factory=Efficiency)

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish:
        """Return the next size to ask for."""
        known = {size: speed for size, speed in seen.speeds.items() if speed.measured}
        if seen.size not in known:
            return self.learn.wish(now, seen, least, most)
        done = seen.steps if self.learn.batch == GLOBAL else seen.host_steps
        left_s, left = max(0.0, self.by - now), max(0.0, self.work - done)
        if not left:
            return Wish(seen.size, "all of the work is done")
        curve = self.learn.curve(seen, known)
        reach = min(most, 4 * max(known))
        sizes = range(least, max(least, reach) + 1)
        enough = [size for size in sizes if curve.rate(size) * left_s * (1 - MARGIN) >= left]
        if not enough:
            fastest = max(sizes, key=lambda size: (curve.rate(size), -size))
            needs = _duration(left / curve.rate(fastest))
            return Wish(
                fastest, f"too late for the deadline: {fastest} hosts need {needs}, {_duration(left_s)} are left"
            )
        size = enough[0]
        needs = _duration(left / curve.rate(size))
        reason = f"{size} hosts need {needs} for the rest, {_duration(left_s)} are left"
        if size < seen.size and self._worth_keeping(curve, size, seen.size):
            return Wish(seen.size, reason)
        return Wish(size, reason, trial=size not in known)

    def _worth_keeping(self, curve: Curve, fewer: int, size: int) -> bool:
        """Whether the difference is within the error of a median."""
        return size - fewer <= 1 and curve.rate(fewer) > 0 and curve.rate(size) / curve.rate(fewer) < 1 + MARGIN


@dataclass(frozen=True, slots=True)
class Cost:
    """Spend at most ``per_hour`` on hosts of ``price``, unless prices are observed. Within that the policy ``learn``
    decides."""

    per_hour: float
    price: float | None = None
    learn: Efficiency = field(default_factory=lambda: Efficiency(share=0.0))

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish:
        """Return the next size to ask for."""
        price = seen.price if seen.price is not None else self.price
        if not price:
            return Wish(seen.size, "the price of a host is not known")
        affordable = int(self.per_hour / price + 1e-9)
        if affordable < least:
            return Wish(
                least,
                f"{least} hosts cost {least * price:.4g} an hour, more than {self.per_hour:g}; fewer are not allowed",
            )
        prices = sorted(seen.prices) if len(seen.prices) == seen.size else [price] * seen.size
        if sum(prices) > self.per_hour + 1e-9:  # the dearest go
            kept = sum(total <= self.per_hour + 1e-9 for total in itertools.accumulate(prices))
            return Wish(kept, f"{seen.size} hosts cost {sum(prices):.4g} an hour, more than {self.per_hour:g}")
        wish = self.learn.wish(now, seen, least, min(most, affordable))
        return Wish(wish.size, f"{wish.reason}; {self.per_hour:g} an hour pays {affordable}", wish.trial)


def _duration(seconds: float) -> str:
    return (
        f"{seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"{seconds / 60:.0f} min"
        if seconds >= 60
        else f"{seconds:.0f} s"
    )
