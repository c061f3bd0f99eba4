"""How long a step takes at each size, from the sizes that were measured.

A step has a part that no host shortens, a part that all hosts share, and what each further host adds::

    the same batch for all:   step(n) = alone + shared / n + each * (n - 1)
    the same batch a host:    step(n) = alone + ring * (n - 1) / n + each * (n - 1)

The first without its last term is Amdahl's law (AFIPS 1967). ``(n - 1) / n`` is the share of a gradient that a ring
allreduce sends and receives (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009); ``each`` stands for what
grows with the number of hosts: latencies of the ring, and waiting for the slowest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hvd_elastic_ext.autoscale.observations import Speed

GLOBAL: Final = "global"
"""The batch of all hosts stays: more hosts, less work for each."""
HOST: Final = "host"
"""The batch of each host stays: more hosts, more samples in a step."""
BATCHES: Final = (HOST, GLOBAL)

Term = Callable[[int], float]

TERMS: Final[Mapping[str, tuple[Term, ...]]] = {
    GLOBAL: (lambda n: 1.0, lambda n: 1.0 / n, lambda n: n - 1.0),
    HOST: (lambda n: 1.0, lambda n: (n - 1.0) / n, lambda n: n - 1.0),
}
"""Of the least that must be known to the most: two sizes tell the first two terms."""


@dataclass(frozen=True, slots=True)
class Curve:
    """``weights``: seconds, one for each of :data:`TERMS`. ``noise_scale``: see :meth:`rate`."""

    batch: str
    weights: tuple[float, ...]
    noise_scale: float | None = None

    def step_s(self, size: int) -> float:
        """Seconds of a step."""
        return sum(weight * term(size) for weight, term in zip(self.weights, TERMS[self.batch], strict=False))

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


def fit(speeds: Mapping[int, Speed], batch: str, *, noise_scale: float | None = None) -> Curve:
    """The curve with the least squared relative error and no negative weight.

    There are no more terms than sizes; of curves that fit alike, the one with the earlier terms, which is the more
    hopeful one. So one size tells that hosts share all, or that each adds its whole speed. ``speeds`` must hold one.
    """
    terms = TERMS[batch]
    if len(speeds) == 1:
        ((size, speed),) = speeds.items()
        hopeful = (0.0, speed.step_s * size) if batch == GLOBAL else (speed.step_s,)
        return Curve(batch, hopeful, noise_scale)
    rows = [[term(size) / speed.step_s for term in terms] for size, speed in speeds.items()]
    best: tuple[float, tuple[float, ...]] | None = None
    count = len(terms)
    alone = [term(1) > 0 for term in terms]
    """Terms that make up the step of one host, which takes some time."""
    sizes = range(1, min(count, len(speeds)) + 1)
    for chosen in itertools.chain.from_iterable(itertools.combinations(range(count), size) for size in sizes):
        weights = _least_squares([[row[at] for at in chosen] for row in rows])
        if (
            weights is None
            or min(weights) < 0
            or not any(w > 0 and alone[at] for w, at in zip(weights, chosen, strict=True))
        ):
            continue
        full = [0.0] * count
        for at, weight in zip(chosen, weights, strict=True):
            full[at] = weight
        error = sum((1.0 - sum(w * x for w, x in zip(full, row, strict=True))) ** 2 for row in rows)
        if best is None or error < best[0] - 1e-12:
            best = error, tuple(full)
    assert best is not None, "one term alone always has a weight above 0"
    return Curve(batch, best[1], noise_scale)


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """Weights with ``rows @ weights`` nearest to 1 in each row; None if rows do not tell them. At most 3 columns."""
    count = len(rows[0])
    table = [
        [sum(row[i] * row[j] for row in rows) for j in range(count)] + [sum(row[i] for row in rows)]
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
