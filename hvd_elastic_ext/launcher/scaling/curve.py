"""Predicts the time of a step at each size, from the measured sizes.

A step has a part that no host shortens, a part that all hosts share, and what each further host adds::

    the same batch for all:   step(n) = alone + shared / n + each * (n - 1)
    the same batch a host:    step(n) = alone + ring * (n - 1) / n + each * (n - 1)

The first without its last term is Amdahl's law (AFIPS 1967). ``(n - 1) / n`` is the share of a gradient that a ring
allreduce sends and receives (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009); ``each`` stands for what
grows with the number of hosts: latencies of the ring, and waiting for the slowest.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from hvd_elastic_ext.launcher.scaling.observations import Speed

GLOBAL: Final = "global"
"""The batch of all hosts together is constant: with more hosts, each has less work."""
HOST: Final = "host"
"""The batch of each host is constant: with more hosts, a step has more samples."""
BATCHES: Final = (HOST, GLOBAL)

LEAST_ERROR: Final = 0.005
"""Smallest relative error that is assumed for a step time."""
FORM_ERROR: Final = 0.02
"""Relative error of such a curve at a size that is e times a size where it is exact."""

Term = Callable[[int], float]

TERMS: Final[Mapping[str, tuple[Term, ...]]] = {
    GLOBAL: (lambda n: 1.0, lambda n: 1.0 / n, lambda n: n - 1.0),
    HOST: (lambda n: 1.0, lambda n: (n - 1.0) / n, lambda n: n - 1.0),
}
"""In order of the number of sizes needed: two sizes determine the first two terms."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The time of a step as a function of the number of hosts."""

    batch: str
    """Which batch is constant: one of :data:`BATCHES`."""
    weights: tuple[float, ...]
    """Seconds, one for each of :data:`TERMS`."""
    noise_scale: float | None = None
    """See :meth:`rate`."""
    off: float = 0.0
    """Relative deviation of the measured steps from this form, beyond their noise."""
    there: Mapping[int, float] = field(default_factory=dict)
    """Seconds of a step at measured sizes."""

    def step_s(self, size: int) -> float:
        """Return the seconds of a step."""
        return self.there[size] if size in self.there else _step_s(self.batch, self.weights, size)

    def rate(self, size: int) -> float:
        """Return the work per second, in batches of one host (or, with a global batch, in steps).

        With a gradient noise scale B (in batches of one host) a sample of a larger batch is worth less, by
        (B + 1) / (B + n): McCandlish et al., An Empirical Model of Large-Batch Training, 2018, equation 2.11.
        """
        step_s = self.step_s(size)
        if step_s <= 0:
            return 0.0
        if self.batch == GLOBAL:
            return 1.0 / step_s
        worth = 1.0 if self.noise_scale is None else (self.noise_scale + 1.0) / (self.noise_scale + size)
        return size * worth / step_s


def fit(speeds: Mapping[int, Speed], batch: str, *, near: int | None = None, noise_scale: float | None = None) -> Curve:
    """The curve with the least squared relative error and no negative weight.

    There are no more terms than sizes; of curves with equal fit, the one with the earlier terms, which is the more
    optimistic. So with one size, hosts are assumed to share all work, or each to add its whole speed. ``speeds`` must
    hold one. Measurements with a smaller error, and those at sizes near ``near``, have more weight: no real curve has
    exactly this form.
    """
    weights = _weights(tuple(speeds.items()), batch, near)
    return _corrected(Curve(batch, weights, noise_scale), speeds)


def _step_s(batch: str, weights: Sequence[float], size: int) -> float:
    return sum(weight * term(size) for weight, term in zip(weights, TERMS[batch], strict=False))


def _corrected(curve: Curve, speeds: Mapping[int, Speed]) -> Curve:
    """Combine the curve with the measured steps; the one with the smaller error has more weight. Links between racks,
    or a batch that does not divide, give steps that do not lie on such a curve.
    """
    used = sum(weight > 0 for weight in curve.weights)  # what no negative weight may fit is off, too
    if len(speeds) < len(TERMS[curve.batch]) or len(speeds) <= used:
        return curve
    form = {size: curve.step_s(size) for size in speeds}
    squares = [(speed.step_s / form[size] - 1.0) ** 2 - speed.error**2 for size, speed in speeds.items()]
    off = max(0.0, sum(squares) / (len(speeds) - used))
    there = {
        size: form[size] + (speed.step_s - form[size]) * off / (off + max(speed.error, LEAST_ERROR) ** 2)
        for size, speed in speeds.items()
    }
    return replace(curve, off=math.sqrt(off), there=there)


def others(speeds: Mapping[int, Speed], batch: str, *, noise_scale: float | None = None) -> list[Curve]:
    """Return all curves through two sizes, which do not determine the terms; none for more or fewer sizes."""
    if len(speeds) != 2:
        return []
    terms, curves = TERMS[batch], []
    for chosen in itertools.combinations(range(len(terms)), 2):
        rows = [[terms[at](size) / speed.step_s for at in chosen] for size, speed in speeds.items()]
        weights = _least_squares(rows, [1.0, 1.0])
        if weights is not None and min(weights) > 0:
            full = dict(zip(chosen, weights, strict=True))
            curves.append(Curve(batch, tuple(full.get(at, 0.0) for at in range(len(terms))), noise_scale))
    return curves


@functools.lru_cache(maxsize=256)
def _weights(speeds: Sequence[tuple[int, Speed]], batch: str, near: int | None) -> tuple[float, ...]:
    """Fit the weights. Cached: at most looks the measured steps have not changed."""
    terms = TERMS[batch]
    if len(speeds) == 1:
        ((size, speed),) = speeds
        return (0.0, speed.step_s * size) if batch == GLOBAL else (speed.step_s,)
    doubts = [
        math.hypot(max(speed.error, LEAST_ERROR), FORM_ERROR * math.log(size / near) if near else 0.0)
        for size, speed in speeds
    ]
    shares = [min(doubts) / doubt for doubt in doubts]
    rows = [
        [share * term(size) / speed.step_s for term in terms]
        for share, (size, speed) in zip(shares, speeds, strict=True)
    ]
    best: tuple[float, tuple[float, ...]] | None = None
    count = len(terms)
    alone = [term(1) > 0 for term in terms]
    """Terms of the step of a single host."""
    sizes = range(1, min(count, len(speeds)) + 1)
    for chosen in itertools.chain.from_iterable(itertools.combinations(range(count), size) for size in sizes):
        weights = _least_squares([[row[at] for at in chosen] for row in rows], shares)
        if (
            weights is None
            or min(weights) < 0
            or not any(w > 0 and alone[at] for w, at in zip(weights, chosen, strict=True))
        ):
            continue
        full = [0.0] * count
        for at, weight in zip(chosen, weights, strict=True):
            full[at] = weight
        error = sum(
            (share - sum(w * x for w, x in zip(full, row, strict=True))) ** 2
            for share, row in zip(shares, rows, strict=True)
        )
        if best is None or error < best[0] - 1e-12:
            best = error, tuple(full)
    assert best is not None, "one term alone always has a weight above 0"
    return best[1]


def _least_squares(rows: Sequence[Sequence[float]], wanted: Sequence[float]) -> list[float] | None:
    """Return the weights with ``rows @ weights`` nearest to ``wanted``; None if the rows do not determine them. At most
    3 columns."""
    count = len(rows[0])
    table = [
        [sum(row[i] * row[j] for row in rows) for j in range(count)]
        + [sum(row[i] * value for row, value in zip(rows, wanted, strict=True))]
        for i in range(count)
    ]
    for at in range(count):
        pivot = max(range(at, count), key=lambda row: abs(table[row][at]))
        if abs(table[pivot][at]) < 1e-12:
            return None
        table[at], table[pivot] = table[pivot], table[at]
        for row in range(count):
            if row != at:
                factor = table[row][at] / table[at][at]
                table[row] = [x - factor * y for x, y in zip(table[row], table[at], strict=True)]
    return [table[at][count] / table[at][at] for at in range(count)]
