"""A batch sampler over an elastic sampler whose global batches are the same for every number of ranks.

Horovod averages the gradients of ranks with equal weight, and adds up the micro-batches of one rank. So the mean over
the global batch results if each micro-batch's mean loss is multiplied by ``size * its samples / samples of the global
batch``. This is exact for any split, also for shares that follow the ranks' speed (:mod:`shares`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.data.sampler import ElasticSampler, Indices
from hvd_elastic_ext.worker.data.shares import EQUAL, MeasuredShares, Rows, chosen, scaled

if TYPE_CHECKING:
    from hvd_elastic_ext.worker.replay.notes import Deal
    from hvd_elastic_ext.worker.replay.recorder import RecordedStep, Recorder

# --- arithmetic


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one rank takes in one pass."""

    places: tuple[int, ...]
    """Positions in the global batch."""
    weight: float
    """The factor for their mean loss."""


def passes(total: int, *, size: int, largest: int | None = None, most: int | None = None) -> int:
    """Return in how many passes each of ``size`` ranks takes its part of ``total`` samples, ``largest`` at a time.

    ``most``: the samples of the rank with most of them. By default shares are equal, and the first ranks may have one
    sample more than the others. All make equally many passes. Raises :class:`UsageError` for numbers below 1.
    """
    for name, number in (("the global batch", total), ("the number of ranks", size), ("the largest batch", largest)):
        if number is not None and number < 1:
            raise UsageError(f"{name} is {number}; it must be at least 1")
    most = -(-total // size) if most is None else most
    return 1 if largest is None else -(-most // largest)


def micro_batches(
    total: int, *, rank: int, size: int, largest: int | None = None, rows: Rows | None = None
) -> tuple[MicroBatch, ...]:
    """Return the micro-batches of ``rank`` for one global batch. ``rows``: the samples of each rank; None: equally
    many.

    A rank without samples in a pass gets one sample with weight 0: every rank must take part in the reductions, and no
    sample may count twice. Errors as in :func:`passes`.
    """
    count = passes(total, size=size, largest=largest, most=None if rows is None else max(rows))
    if not 0 <= rank < size:
        raise UsageError(f"rank {rank} is not one of {size} ranks; they count from 0")
    before = 0 if rows is None else sum(rows[:rank])
    places = range(rank, total, size) if rows is None else range(before, before + rows[rank])
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
    rows: int
    """This rank's samples."""
    starts: tuple[int, ...] = (0,)
    """Where the part of each rank begins: a lost step that is done again may have several."""
    deal: Deal | None = None
    """How such a step is dealt; None for others."""


class Step:
    """One optimizer step: this rank's micro-batches of one global batch, each with the weight of its mean loss.

    ``record`` is called when all were used. ``shares`` measure the step, in which this rank has ``rows`` samples; None:
    it is not measured. ``recorded``: what notes it under ``run --replay``.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        weights: Sequence[float],
        *,
        length: int,
        rows: int,
        record: Callable[[], None],
        shares: MeasuredShares | None = None,
        recorded: RecordedStep | None = None,
    ) -> None:
        self.length = length
        """Samples of all ranks together."""
        self.rows = rows
        """Samples of this rank."""
        self.passes = len(weights)
        self.done = False
        """Whether all micro-batches were used."""
        self._batches = batches
        self._weights = weights
        self._record = record
        self._shares = shares
        self._recorded = recorded

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        measured = None if self._shares is None else self._shares.begin_step()
        for number, weight in enumerate(self._weights):
            if self._recorded is not None:
                self._recorded.before(number, weight=weight)
            yield next(self._batches), weight
        if self._recorded is not None:
            self._recorded.end()
        if self._shares is not None and measured is not None:
            self._shares.stepped(measured, self.rows, total=self.length)
        self._record()
        self.done = True

    def demand_done(self, what: str) -> None:
        """Raise :class:`UsageError` if the step is not done. ``what``: whose it is."""
        if not self.done:
            raise UsageError(f"{what}: a step was left before all of its {self.passes} micro-batches were used")


class GlobalBatches(Sampler[list[int]]):
    """The samples of ``sampler`` in batches of ``total`` over all ranks, at most ``largest`` on one rank at a time.

    The k-th global batch of an epoch has the same samples for every number of ranks, also after resizes. Pass this
    object to a ``DataLoader`` as ``batch_sampler`` and iterate over :meth:`steps`. The last batch of an epoch may be
    smaller; with the sampler's ``drop_last`` it is left out.

    ``shares``: "equal", or "measured": each rank's part of the batch follows its speed. It begins equal in each world,
    stays between a quarter of that and four times that, and changes only at a ``state.commit()``. All global batches
    over the samplers and streams of a State follow one measured speed.

    Raises :class:`UsageError` for numbers below 1, and for other ``shares``.
    """

    def __init__(self, sampler: ElasticSampler, total: int, largest: int | None = None, shares: str = EQUAL) -> None:
        passes(total, size=1, largest=largest)
        self.sampler = sampler
        self.total = total
        self.largest = largest
        self.shares = chosen(shares, of="GlobalBatches")
        if self.shares is not None:  # all batches over one sampler follow one speed
            self.shares = sampler.shares = sampler.shares or self.shares

    @property
    def passes(self) -> int:
        """Most micro-batches of a step in the present world: Horovod's ``backward_passes_per_step``."""
        size = self.sampler.world()[1]
        most = None if self.shares is None else self.shares.most(self.total, size)
        return passes(self.total, size=size, largest=self.largest, most=most)

    def steps(self, loader: Iterable[Any]) -> Iterator[Step]:
        """Iterate over ``loader``, the ``DataLoader`` made with this object, one optimizer step at a time.

        The samples of a step are recorded when all its micro-batches have been used. Raises :class:`UsageError` if a
        step ends before that.
        """
        if getattr(loader, "batch_sampler", None) is not self:
            raise UsageError("GlobalBatches.steps: this loader was not made with batch_sampler=these batches")
        if self.sampler.round is not None:
            raise UsageError(
                "GlobalBatches: between two averages each rank steps alone, so no step has a global batch; give "
                "DataLoader(dataset, batch_size=…, sampler=sampler) with elastic.LocalSGD and elastic.DiLoCo"
            )
        if self.sampler.recorder is not None:
            self.sampler.recorder.settle()
        self.sampler.assign()
        self.sampler.begin_loop(nothing_left=not self._plans())
        # What the loader has fetched ahead for earlier shares is dropped: it does not count as consumed.
        while (yield from self._until_shares_change(loader)) and self._plans():
            pass

    def _until_shares_change(self, loader: Iterable[Any]) -> Generator[Step, None, bool]:
        """Yield steps, and return whether shares have changed before the last one."""
        shares, plans, batches, recorder = self.shares, self._plans(), iter(loader), self.sampler.recorder
        changes = 0 if shares is None else shares.changes
        if shares is not None:
            shares.report(shares.rows(self.total, self.sampler.num_replicas), self.sampler.rank)
        for number, plan in enumerate(plans):
            step = Step(
                batches,
                [micro.weight for micro in plan.micro_batches],
                length=plan.length,
                rows=plan.rows,
                record=partial(self.sampler.record, plan.length),
                shares=shares if plan.length == self.total and plan.deal is None else None,
                recorded=None if recorder is None else self._recorded(plan, recorder),
            )
            yield step
            step.demand_done("GlobalBatches.steps")
            if recorder is not None:
                recorder.settle()
            if shares is not None and shares.changes != changes:
                return True
            if number + 1 < len(plans) and self._others_were_lost(plans[number + 1]):
                return True
        return False

    def _others_were_lost(self, plan: Plan) -> bool:
        """Whether the step that is planned next is not a lost one though one is next, or the other way round: lost
        steps with samples of another sampler came in between."""
        recorder = self.sampler.recorder
        return recorder is not None and (plan.deal is None) == bool(self._lost(recorder, 1))

    def _lost(self, recorder: Recorder, most: int) -> list[Deal]:
        """The next lost steps, as far as these batches can do them again."""

        def alike(deal: Deal) -> bool:
            return (deal.run.world.total, deal.run.world.largest) == (self.total, self.largest)

        return list(takewhile(alike, recorder.lost(self.sampler, most)))

    def __iter__(self) -> Iterator[list[int]]:
        # Planned now, and not with the first batch: a commit in between may change the shares.
        return self._places(self.sampler.remaining_indices, self._plans())

    @staticmethod
    def _places(order: Indices, plans: Sequence[Plan]) -> Iterator[list[int]]:
        start = 0
        for plan in plans:
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
        recorder = self.sampler.recorder
        lost = [] if recorder is None else self._lost(recorder, len(lengths))
        plan_of = {length: self._plan(length, rank=rank, size=size) for length in set(lengths)}
        again = [self._again(length, deal) for length, deal in zip(lengths, lost, strict=False)]
        return [*again, *(plan_of[length] for length in lengths[len(lost) :])]

    def _recorded(self, plan: Plan, recorder: Recorder) -> RecordedStep:
        place = (self.sampler.epoch, len(self.sampler.remaining_indices))
        if plan.deal is not None:
            return recorder.again(plan.deal, plan.starts, place=place, samples=partial(self._samples, plan))
        world = recorder.world(self.sampler, rows=self._rows(), total=self.total, largest=self.largest)
        return recorder.step(world, place=place)

    def _samples(self, plan: Plan) -> list[list[int]]:
        """The numbers of the samples in each part of the next step."""
        order, ends = self.sampler.remaining_indices, [*plan.starts[1:], len(plan.micro_batches)]
        return [
            [int(order[place]) for micro in plan.micro_batches[start:end] if micro.weight for place in micro.places]
            for start, end in zip(plan.starts, ends, strict=True)
        ]

    def _rows(self) -> Rows | None:
        """The shares of the present world; None: equal ones."""
        return None if self.shares is None else self.shares.rows(self.total, self.sampler.world()[1])

    def _plan(self, length: int, *, rank: int, size: int) -> Plan:
        shares = self._rows()
        rows = None if shares is None else scaled(shares, length)
        parts = micro_batches(length, rank=rank, size=size, largest=self.largest, rows=rows)
        own = len(range(rank, length, size)) if rows is None else rows[rank]
        return Plan(length, parts, own)

    def _again(self, length: int, deal: Deal) -> Plan:
        """Plan a lost step as its own world had dealt it: this rank takes the parts of several ranks of that world."""
        world = deal.run.world
        rows = None if world.rows is None else scaled(world.rows, length)
        taken: list[MicroBatch] = []
        starts: list[int] = []

        def part(rank: int) -> tuple[MicroBatch, ...]:
            return micro_batches(length, rank=rank, size=world.size, largest=self.largest, rows=rows)

        for rank in deal.parts:
            starts.append(len(taken))
            taken += [replace(micro, weight=micro.weight * deal.factor) for micro in part(rank)]
        samples = sum(len(micro.places) for micro in taken if micro.weight)
        if deal.padding:
            # A part that was taken already: a model may refuse a batch of one sample.
            filler = part(deal.parts[0] if deal.parts else self.sampler.world()[0] % world.size)
            starts.append(len(taken))
            taken += [replace(micro, weight=0.0) for micro in filler] * deal.padding
        return Plan(length, tuple(taken), samples, tuple(starts), deal)
