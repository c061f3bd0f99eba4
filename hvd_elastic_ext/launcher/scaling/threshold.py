"""Signals with marks: a signal above its high mark asks for more hosts, one below its low mark for fewer.

The size is that of Kubernetes' HorizontalPodAutoscaler: ``ceil(size * value / target)``, and none within its tolerance
of 0.1 (Kubernetes documentation, "Horizontal Pod Autoscaling", algorithm details). With two marks the target is the
middle between them, and nothing happens while the value is between them. Of several signals the largest size wins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.launcher.scaling.observations import Observations, Wish

TOLERANCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Mark:
    """The marks of one signal. ``high``: more hosts above it; ``low``: fewer below it; None if ``high`` is a target.

    ``total``: the value is of all hosts together, such as the length of a queue, and marks are for each host.
    """

    signal: str
    high: float
    low: float | None = None
    total: bool = False

    def wish(self, size: int, value: float) -> Wish:
        """Return the size for this signal."""
        each = value / size if self.total else value
        shown = f"{self.signal} is {each:.3g}" + (" a host" if self.total else "")
        if self.low is None:
            if abs(each / self.high - 1.0) <= TOLERANCE:
                return Wish(size, f"{shown}, near its target of {self.high:g}")
            return Wish(_ceil(size * each / self.high), f"{shown}, its target is {self.high:g}")
        if self.low <= each <= self.high:
            return Wish(size, f"{shown}, between {self.low:g} and {self.high:g}")
        wanted = _ceil(size * each / ((self.low + self.high) / 2))
        if each > self.high:
            return Wish(max(wanted, size + 1), f"{shown}, above {self.high:g}")
        return Wish(min(wanted, size), f"{shown}, below {self.low:g}")


@dataclass(frozen=True, slots=True)
class Threshold:
    """The policy: all signals with marks."""

    marks: tuple[Mark, ...]

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish:
        """Return the largest size of all signals. While a signal is unknown, no host is given back."""
        known = [mark for mark in self.marks if mark.signal in seen.signals]
        missing = ", ".join(mark.signal for mark in self.marks if mark.signal not in seen.signals)
        if not known:
            return Wish(seen.size, f"no value of {missing} yet")
        wishes = [mark.wish(seen.size, seen.signals[mark.signal]) for mark in known]
        chosen = max(wishes, key=lambda wish: wish.size)
        if missing and chosen.size < seen.size:
            return Wish(seen.size, f"{chosen.reason}; no value of {missing} yet")
        return Wish(max(least, min(most, chosen.size)), chosen.reason)


def _ceil(hosts: float) -> int:
    return max(1, math.ceil(hosts - 1e-9))
