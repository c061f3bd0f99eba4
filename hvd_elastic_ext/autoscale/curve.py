"""How long a step takes at each size, from the sizes that were measured.

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

from hvd_elastic_ext.autoscale.observations import Speed

GLOBAL: Final = "global"
"""The batch of all hosts stays: more hosts, less work for each."""
HOST: Final = "host"
"""The batch of each host stays: more hosts, more samples in a step."""
BATCHES: Final = (HOST, GLOBAL)

LEAST_ERROR: Final = 0.005
"""No step time is known better than by this share."""
FORM_ERROR: Final = 0.02
"""By how much a curve of this form is off at a size that is e times as large as one where it is right, as a share."""

Term = Callable[[int], float]

TERMS: Final[Mapping[str, tuple[Term, ...]]] = {
    GLOBAL: (lambda n: 1.0, lambda n: 1.0 / n, lambda n: n - 1.0),
    HOST: (lambda n: 1.0, lambda n: (n - 1.0) / n, lambda n: n - 1.0),
}
"""Of the least that must be known to the most: two sizes tell the first two terms."""


@dataclass(frozen=True, slots=True)
class Curve:
    """``weights``: seconds, one for each of :data:`TERMS`. ``noise_scale``: see :meth:`rate`.

    ``off``: by how much measured steps are off this form, beyond their noise, as a share. ``there``: seconds of a step
    at sizes that were measured, where they are.
    """

    batch: str
    weights: tuple[float, ...]
    noise_scale: float | None = None
    off: float = 0.0
    there: Mapping[int, float] = field(default_factory=dict)

    def step_s(self, size: int) -> float:
        """Seconds of a step."""
        return self.there[size] if size in self.there else _step_s(self.batch, self.weights, size)

    def rate(self, size: int) -> float:
        """Work in a second, in batches of one host (or, with a global batch, in steps).

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

    There are no more terms than sizes; of curves that fit alike, the one with the earlier terms, which is the more
    hopeful one. So one size tells that hosts share all, or that each adds its whole speed. ``speeds`` must hold one.
    What is measured better counts for more, and so does what is measured at sizes like ``near``: no real curve has
    quite this form.
    """
    weights = _weights(tuple(speeds.items()), batch, near)
    return _corrected(Curve(batch, weights, noise_scale), speeds)


def _step_s(batch: str, weights: Sequence[float], size: int) -> float:
    return sum(weight * term(size) for weight, term in zip(weights, TERMS[batch], strict=False))


def _corrected(curve: Curve, speeds: Mapping[int, Speed]) -> Curve:
    """The curve, and what was measured: of the two that counts for more which is surer.

    Links between racks, or a batch that does not divide, give steps that no such curve has.
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
    """All curves through two sizes: these do not tell which terms there are. None for more sizes, or fewer."""
    if len(speeds) != 2:
        return []
    terms, found = TERMS[batch], []
    for chosen in itertools.combinations(range(len(terms)), 2):
        rows = [[terms[at](size) / speed.step_s for at in chosen] for size, speed in speeds.items()]
        weights = _least_squares(rows, [1.0, 1.0])
        if weights is not None and min(weights) > 0:
            full = dict(zip(chosen, weights, strict=True))
            found.append(Curve(batch, tuple(full.get(at, 0.0) for at in range(len(terms))), noise_scale))
    return found


@functools.lru_cache(maxsize=256)
def _weights(speeds: Sequence[tuple[int, Speed]], batch: str, near: int | None) -> tuple[float, ...]:
    """Measured steps are the same ones at most looks."""
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
    """Terms that make up the step of one host, which takes some time."""
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
    """Weights with ``rows @ weights`` nearest to ``wanted``; None if rows do not tell them. At most 3 columns."""
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
