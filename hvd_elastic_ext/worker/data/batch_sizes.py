"""Batch arithmetic: one global batch for any number of ranks, and the learning rate where the batch grows instead.

Pure. Horovod averages the gradients of ranks with equal weight, and adds up the micro-batches of one rank. So the
mean over the global batch results if each micro-batch's mean loss is multiplied by ``size * its samples / samples of
the global batch``. This is exact for any split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from hvd_elastic_ext.core.errors import UsageError

Rule = Literal["linear", "sqrt", "none"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The positions in the global batch that one rank takes in one pass, and the factor for their mean loss."""

    places: tuple[int, ...]
    weight: float


def passes(total: int, *, size: int, largest: int | None = None) -> int:
    """Return in how many passes each of ``size`` ranks takes its part of ``total`` samples, ``largest`` at a time.

    The first ranks may have one sample more than the others; all make equally many passes. Raises :class:`UsageError`
    for numbers below 1.
    """
    for name, number in (("the global batch", total), ("the number of ranks", size), ("the largest batch", largest)):
        if number is not None and number < 1:
            raise UsageError(f"{name} is {number}; it must be at least 1")
    most = -(-total // size)
    return 1 if largest is None else -(-most // largest)


def micro_batches(total: int, *, rank: int, size: int, largest: int | None = None) -> tuple[MicroBatch, ...]:
    """Return the micro-batches of ``rank`` for one global batch.

    A rank without samples in a pass gets one sample with weight 0: every rank must take part in the reductions, and no
    sample may count twice. Errors as in :func:`passes`.
    """
    count = passes(total, size=size, largest=largest)
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} is not one of {size} ranks; they count from 0")
    places = range(rank, total, size)
    filler = MicroBatch((rank % total,), 0.0)
    base, more = divmod(len(places), count)
    found, start = [], 0
    for number in range(count):
        stop = start + base + (number < more)
        weight = size * (stop - start) / total
        found.append(MicroBatch(tuple(places[start:stop]), weight) if stop > start else filler)
        start = stop
    return tuple(found)


def lr_factor(rule: Rule, *, size: int, base: float) -> float:
    """Return the factor for a learning rate that was chosen for ``base`` ranks.

    Raises :class:`UsageError` for an unknown rule or a base that is not positive.
    """
    if rule not in _FACTORS:
        raise UsageError(f"learning-rate rule {rule!r}: no such rule; choose {', '.join(get_args(Rule))}")
    if base <= 0:
        raise UsageError(f"the learning rate's base is {base} ranks; it must be positive")
    return _FACTORS[rule](size / base)


_FACTORS: Final[dict[str, Callable[[float], float]]] = {"linear": float, "sqrt": math.sqrt, "none": lambda _: 1.0}
