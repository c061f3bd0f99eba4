"""Adds hosts while each adds enough, and gives back hosts that do not.

A host is worth having if it adds at least ``share`` of what one host does alone. The best size has the most work beyond
that price: ``rate(n) - share * rate(1) * n``. Where steps get slower with each host, as they do, that is the last size
whose host adds enough.

A size is left when another one is better with enough certainty. Until then its steps are measured, up to :data:`ENOUGH`
of them; a gain that these do not show is too small for a change.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from hvd_elastic_ext.launcher.scaling.curve import HOST, Curve, fit, others
from hvd_elastic_ext.launcher.scaling.observations import ENOUGH, STEPS, Observations, Speed, Wish

FIRST_REACH: Final = 2
"""With one measured size, the largest trial is this many times as large."""
REACH: Final = 4
"""With more measured sizes, the largest trial is this many times the largest of them."""
WORTH: Final = 0.005
"""Smallest gain of a change, as a share of the present rate."""
MAYBE: Final = 0.02
"""Smallest gain of a trial that is made because two sizes do not determine the form of the curve."""
OFF: Final = 0.1
"""Steps whose relative deviation from the curve is larger do not follow its form."""
SURE: Final = 1.0
"""Number of standard errors by which a gain must exceed that."""
BUSY_ERROR: Final = 0.03
"""Relative error when the speed of a single host is taken from its time without waits in a larger world."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """The policy: as many hosts as add enough."""

    share: float = 0.5
    """How much of one host's own speed a further host has to add."""
    batch: str = HOST
    """Which batch is constant (``curve.BATCHES``)."""
    noise: bool = False
    """Whether ``state.observe(noise_scale=...)`` counts: samples of larger batches are worth less."""

    def wish(self, now: float, seen: Observations, least: int, most: int) -> Wish:
        """Return the next size to ask for, within ``least`` and ``most``."""
        here = seen.speeds.get(seen.size)
        if here is None or not here.measured:
            few = 0 if here is None else here.steps
            return Wish(seen.size, f"{few} of {STEPS} steps measured at {_hosts(seen.size)}")
        measured = {size: speed for size, speed in seen.speeds.items() if speed.measured}
        known = self.known(measured)
        if len(known) == 1:
            return self._first_trial(seen, least, most)
        curve = self._fitted(seen, known)
        reach = min(most, (REACH if len(measured) > 1 else FIRST_REACH) * max(known))
        best = best_size(curve, self.share, least, reach)
        if curve.off >= OFF:  # what the form tells of other sizes is worth nothing
            there = [size for size in known if least <= size <= reach]
            best = max(there, key=lambda size: (worth(curve, size, self.share), -size), default=seen.size)
        gain = self._gain(curve, seen.size, best)
        keeps = ""
        if best == seen.size or gain < WORTH:
            trial = self._maybe(seen, known, least, reach)
            keeps = f"{self._last_adds(curve, seen.size, known=measured)}; {self._best(curve, seen.size, most)}"
        else:
            off = 0.0 if best in known else curve.off * curve.rate(best) / curve.rate(seen.size)
            trial, unsure = None, gain - WORTH < SURE * math.hypot(self._doubt(seen, known, best), off)
            if unsure and not here.final:
                steps = f"{here.steps} of {ENOUGH} steps measured at {_hosts(seen.size)}"
                return Wish(seen.size, f"{steps}: not sure yet that {_hosts(best)} are better")
            if unsure and (gain < off or (best in measured and measured[best].final)):
                keeps = f"{_hosts(best)} would bring {gain:.1%}, which is too little to be seen"
        if keeps:
            trial = trial or self._between(seen, curve, known, most) or self._beyond(seen, curve, known, most)
            trial = trial or self._before_cliff(seen, curve, known, least, most)
            return trial or Wish(seen.size, keeps)
        if best > seen.size:
            reason = f"{self._last_adds(curve, best, known=measured)}, at least {self.share:.0%} is wanted"
        else:
            reason = f"{self._last_adds(curve, seen.size, known=measured)}, less than {self.share:.0%}"
        wish = Wish(best, reason, trial=best not in measured, gain=gain)
        if best not in known or (trial := self._before_cliff(seen, curve, known, least, most)) is None:
            return wish
        return replace(trial, otherwise=wish)  # from here, and not after the way back

    def _maybe(self, seen: Observations, known: Mapping[int, Speed], least: int, most: int) -> Wish | None:
        """Return a trial of the size that would be best under another form of the curve."""
        hopes = [
            (self._gain(curve, seen.size, best), best)
            for curve in others(known, self.batch, noise_scale=self._noise_scale(seen))
            if (best := best_size(curve, self.share, least, most)) not in known
        ]
        gain, best = max(hopes, default=(0.0, seen.size))
        if gain < MAYBE:
            return None
        return Wish(
            best, f"the sizes measured so far do not show whether {_hosts(best)} are better", trial=True, gain=gain
        )

    def _between(self, seen: Observations, curve: Curve, known: Mapping[int, Speed], most: int) -> Wish | None:
        """Return a trial halfway to the next larger size, if its steps do not follow the form: the step time may jump
        between the two."""
        beyond = min((size for size in known if size > seen.size), default=0)
        half = round(math.sqrt(seen.size * beyond))
        if not seen.size < half < beyond or half > most or len(known) < 3:
            return None
        fewer = {size: speed for size, speed in known.items() if size < beyond}
        off = self._longer(fewer, known[beyond], beyond)
        off = off if len(known) == 3 else max(off, curve.off)  # the form always fits three sizes
        each = (curve.rate(seen.size) - curve.rate(1)) / (seen.size - 1) if seen.size > 1 else curve.rate(1)
        gain = (half - seen.size) * (each - self.share * curve.rate(1)) / curve.rate(seen.size)
        if off < OFF or gain < MAYBE:
            return None
        return Wish(
            half, f"steps at {_hosts(beyond)} are longer than predicted from fewer hosts", trial=True, gain=gain
        )

    def _before_cliff(
        self, seen: Observations, curve: Curve, known: Mapping[int, Speed], least: int, most: int
    ) -> Wish | None:
        """Return a trial between two sizes, if the larger one has longer steps than predicted from fewer hosts, and the
        prediction for a size between them is better than any measured size: the best size may be below the jump."""
        highest = max(worth(curve, size, self.share) for size in known if least <= size <= most)
        for low, high in itertools.pairwise(sorted(known)):
            fewer = {size: speed for size, speed in known.items() if size <= low}
            half = round(math.sqrt(low * high))
            if len(fewer) < 2 or not max(low + 1, least) <= half < min(high, most + 1):
                continue
            if self._longer(fewer, known[high], high) < OFF:
                continue
            forms, price = self._forms(fewer), self.share * curve.rate(1)
            hoped = max(
                min(form.rate(size) for form in forms) - price * size for size in range(low + 1, min(high, most + 1))
            )
            gain = (hoped - highest) / curve.rate(seen.size)
            if gain >= MAYBE:
                reason = f"steps at {_hosts(high)} are longer than predicted from fewer hosts"
                return Wish(half, reason, trial=True, gain=gain)
        return None

    def _beyond(self, seen: Observations, curve: Curve, known: Mapping[int, Speed], most: int) -> Wish | None:
        """Return a trial of more hosts than measured, if the form predicts nothing and the last hosts added enough."""
        fewer = [size for size in known if size < seen.size]
        if curve.off < OFF or not fewer or seen.size != max(known) or seen.size >= most:
            return None
        each = (curve.rate(seen.size) - curve.rate(max(fewer))) / (seen.size - max(fewer))
        size = min(most, FIRST_REACH * seen.size)
        gain = (size - seen.size) * (each - self.share * curve.rate(1)) / curve.rate(seen.size)
        if gain < MAYBE:
            return None
        return Wish(size, f"each of the last hosts up to {seen.size} has paid", trial=True, gain=gain)

    def _longer(self, fewer: Mapping[int, Speed], there: Speed, size: int) -> float:
        """Return by which share steps at ``size`` are longer than predicted from ``fewer`` hosts."""
        return there.step_s / max((form.step_s(size) for form in self._forms(fewer)), default=math.inf) - 1.0

    def _forms(self, fewer: Mapping[int, Speed]) -> list[Curve]:
        """Return all curves for the measured sizes."""
        return [fit(fewer, self.batch, near=max(fewer))] if len(fewer) > 2 else others(fewer, self.batch)

    def curve(self, seen: Observations, measured: Mapping[int, Speed]) -> Curve:
        """Return the curve for the measured sizes."""
        return self._fitted(seen, self.known(measured))

    def known(self, measured: Mapping[int, Speed]) -> Mapping[int, Speed]:
        """Return the measured speeds, with that of a single host added if it follows from them.

        With a batch for each host, the time without the wait for others tells how fast one host is alone: it was not
        tried as a rule, and what is wanted of a further host is a share of it.
        """
        alone = [speed.busy_s for speed in measured.values() if speed.busy_s]
        if self.batch != HOST or not alone or 1 in measured:
            return measured
        return {**measured, 1: Speed(median(alone), STEPS, error=BUSY_ERROR)}

    def _fitted(self, seen: Observations, known: Mapping[int, Speed]) -> Curve:
        return fit(known, self.batch, near=seen.size, noise_scale=self._noise_scale(seen))

    def _noise_scale(self, seen: Observations) -> float | None:
        return seen.signals.get("noise_scale") if self.noise else None

    def _gain(self, curve: Curve, size: int, best: int) -> float:
        """Return the gain of ``best`` over ``size``, as a share of the rate at ``size``."""
        return (worth(curve, best, self.share) - worth(curve, size, self.share)) / curve.rate(size)

    def _doubt(self, seen: Observations, known: Mapping[int, Speed], best: int) -> float:
        """Return the standard error of a gain, from those of all step times."""
        squares = 0.0
        for size, speed in known.items():
            if speed.error:
                more, less = (
                    self._gain(self._fitted(seen, {**known, size: changed}), seen.size, best)
                    for changed in (
                        replace(speed, step_s=speed.step_s * (1 + speed.error)),
                        replace(speed, step_s=speed.step_s / (1 + speed.error)),
                    )
                )
                squares += ((more - less) / 2) ** 2
        return math.sqrt(squares)

    def _first_trial(self, seen: Observations, least: int, most: int) -> Wish:
        """Return the first trial: half as many hosts, which needs no new hosts, or twice as many if fewer are not
        allowed."""
        size = max(least, (seen.size + 1) // FIRST_REACH)
        if size == seen.size:
            size = min(most, FIRST_REACH * seen.size)
        if size == seen.size:
            return Wish(size, "no other size is allowed")
        return Wish(size, f"only {_hosts(seen.size)} measured so far", trial=True)

    def _last_adds(self, curve: Curve, size: int, *, known: Mapping[int, Speed]) -> str:
        """Return what the last host adds. It is an estimate unless all sizes of that comparison are in ``known``."""
        if size < 2:
            return "one host alone"
        added = max(0.0, (curve.rate(size) - curve.rate(size - 1)) / curve.rate(1))
        adds = "adds" if {1, size - 1, size} <= known.keys() else "is estimated to add"
        return f"host {size} {adds} {added:.0%} of one host's own speed"

    def _best(self, curve: Curve, size: int, most: int) -> str:
        """Return that ``size`` is the best one, or that no larger one is allowed."""
        if size == most and best_size(curve, self.share, size, REACH * size) > size:
            return f"more than {_hosts(most)} would be better, and {'is' if most == 1 else 'are'} not allowed"
        return f"{_hosts(size)} {'is' if size == 1 else 'are'} best"


def worth(curve: Curve, size: int, share: float) -> float:
    """Return the work per second less the price of the hosts."""
    return curve.rate(size) - share * curve.rate(1) * size


def best_size(curve: Curve, share: float, least: int, most: int) -> int:
    """Return the best size; the smallest of equal ones."""
    return max(range(least, max(least, most) + 1), key=lambda size: (worth(curve, size, share), -size))


def _hosts(size: int) -> str:
    return "1 host" if size == 1 else f"{size} hosts"
