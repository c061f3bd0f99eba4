"""A batch sampler over an elastic sampler whose global batches are the same for every number of ranks.

Horovod averages the gradients of ranks with equal weight, and adds up the micro-batches of one rank. So the mean over
the global batch results if each micro-batch's mean loss is multiplied by ``size * its samples / samples of the global
batch``. This is exact for any split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Sampler

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.data.sampler import ElasticSampler

# --- arithmetic


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one rank takes in one pass."""

    places: tuple[int, ...]
    """Positions in the global batch."""
    weight: float
    """The factor for their mean loss."""


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
    made, start = [], 0
    for number in range(count):
        stop = start + base + (number < more)
        weight = size * (stop - start) / total
        made.append(MicroBatch(tuple(places[start:stop]), weight) if stop > start else filler)
        start = stop
    return tuple(made)


# --- the batch sampler


@dataclass(frozen=True, slots=True)
class Plan:
    """One global batch."""

    length: int
    """Its samples."""
    micro_batches: tuple[MicroBatch, ...]
    """This rank's part."""


class Step:
    """One optimizer step: this rank's micro-batches of one global batch, each with the weight of its mean loss."""

    def __init__(self, plan: Plan, batches: Iterator[Any], *, sampler: ElasticSampler) -> None:
        self.length = plan.length
        """Samples of all ranks together."""
        self.passes = len(plan.micro_batches)
        self.done = False
        """Whether all micro-batches were used."""
        self._plan = plan
        self._batches = batches
        self._sampler = sampler

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        for micro in self._plan.micro_batches:
            yield next(self._batches), micro.weight
        self._sampler.record(self.length)
        self.done = True


class GlobalBatches(Sampler[list[int]]):
    """The samples of ``sampler`` in batches of ``total`` over all ranks, at most ``largest`` on one rank at a time.

    The k-th global batch of an epoch has the same samples for every number of ranks, also after resizes. Pass this
    object to a ``DataLoader`` as ``batch_sampler`` and iterate over :meth:`steps`. The last batch of an epoch may be
    smaller; with the sampler's ``drop_last`` it is left out.

    Raises :class:`UsageError` for numbers below 1.
    """

    def __init__(self, sampler: ElasticSampler, total: int, largest: int | None = None) -> None:
        passes(total, size=1, largest=largest)
        self.sampler = sampler
        self.total = total
        self.largest = largest

    @property
    def passes(self) -> int:
        """Micro-batches of a full step in the present world: Horovod's ``backward_passes_per_step``."""
        return passes(self.total, size=self.sampler.world()[1], largest=self.largest)

    def steps(self, loader: Iterable[Any]) -> Iterator[Step]:
        """Iterate over ``loader``, the ``DataLoader`` made with this object, one optimizer step at a time.

        The samples of a step are recorded when all its micro-batches have been used. Raises :class:`UsageError` if a
        step ends before that.
        """
        if getattr(loader, "batch_sampler", None) is not self:
            raise UsageError("GlobalBatches.steps: this loader was not made with batch_sampler=these batches")
        self.sampler.assign()
        self.sampler.begin_loop(nothing_left=not self._plans())
        plans, batches = self._plans(), iter(loader)
        for plan in plans:
            step = Step(plan, batches, sampler=self.sampler)
            yield step
            if not step.done:
                raise UsageError(
                    f"GlobalBatches.steps: a step was left before all of its {step.passes} micro-batches were used"
                )

    def __iter__(self) -> Iterator[list[int]]:
        order, start = self.sampler.remaining_indices, 0
        for plan in self._plans():
            for micro in plan.micro_batches:
                yield [int(order[start + place]) for place in micro.places]
            start += plan.length

    def __len__(self) -> int:
        """Micro-batches of this rank in the rest of the epoch."""
        return sum(len(plan.micro_batches) for plan in self._plans())

    def _plans(self) -> list[Plan]:
        """Plan this rank's steps for the rest of the epoch."""
        rank, size = self.sampler.world()
        full, rest = divmod(len(self.sampler.remaining_indices), self.total)
        lengths = [self.total] * full + ([rest] if rest and not self.sampler.drop_last else [])
        plan_of = {n: Plan(n, micro_batches(n, rank=rank, size=size, largest=self.largest)) for n in set(lengths)}
        return [plan_of[length] for length in lengths]
