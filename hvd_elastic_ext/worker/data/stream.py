"""Assigns the records of shards: the elastic sampler for data that can only be read in order."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from hvd_elastic_ext.core.errors import DataError, UsageError
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.data.assignment import (
    Assignment,
    Consumed,
    Range,
    Ranges,
    SharedAssignment,
    joined,
    total,
)
from hvd_elastic_ext.worker.data.global_batches import Step
from hvd_elastic_ext.worker.data.sampler import shuffled
from hvd_elastic_ext.worker.data.shares import EQUAL, MeasuredShares, Rows, chosen
from hvd_elastic_ext.worker.replay.notes import Lanes

if TYPE_CHECKING:
    from hvd_elastic_ext.worker.replay.notes import Deal
    from hvd_elastic_ext.worker.replay.recorder import Recorder

_UNKNOWN: Final = "?"


class ElasticStream(IterableDataset[Any]):
    """The records of ``shards``, each consumed once per epoch, through resizes and roll-backs.

    ``open_shard(shard, start)`` returns an iterable of a shard's records from number ``start`` on. If it takes only the
    shard, the first ``start`` records are read and dropped. ``lengths`` are the numbers of records by shard;
    ``count(shard)`` finds one. Without both, each shard is read once to count its records. ``shuffle`` reads the shards
    in an order drawn from ``seed`` and the epoch; the records of a shard keep their order. ``drop_last`` leaves out
    records that do not divide evenly among the ranks, instead of repeating some.

    ``shares``: "equal", or "measured": what each rank reads follows its speed, as in :class:`GlobalBatches`. Then
    iterate over :meth:`steps`, which gives the weight of each batch and records it.

    Pass it to the State, iterate over :meth:`loader` (or, without loader processes, over any ``DataLoader``), call
    ``record_batch`` after each batch and ``set_epoch`` with the next number after each epoch.

    Raises :class:`DataError` while reading if the length of a shard has changed.
    """

    def __init__(
        self,
        shards: Sequence[str],
        open_shard: Callable[..., Iterable[Any]],
        *,
        lengths: Sequence[int] | None = None,
        count: Callable[[str], int] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        shares: str = EQUAL,
    ) -> None:
        if lengths is not None and len(lengths) != len(shards):
            raise UsageError(f"ElasticStream: {len(shards)} shards, but {len(lengths)} lengths; give one for each")
        self.shards = tuple(shards)
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.shares = chosen(shares, of="ElasticStream")
        self.recorder: Recorder | None = None
        """Of the State with this stream, under ``run --replay``."""
        self.epoch = 0
        self._open = open_shard if takes_start(open_shard) else _Skipping(open_shard)
        self._count = count or self._read_through
        self._lengths: tuple[int | None, ...] = tuple(lengths) if lengths is not None else (None,) * len(shards)
        self._fingerprint = fingerprint(self.shards)
        self._counted: dict[int, int] = {}
        self._left: Ranges | None = None
        """The ranges that were left at the last assignment; None: the whole epoch."""
        self._assignment: Assignment | SharedAssignment | None = None
        self._consumed = Consumed(())
        self._rank = 0
        self._loading = False

    def world(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks."""
        return current_world.current()

    def loader(self, batch_size: int | None = 1, num_workers: int = 0, **options: Any) -> StreamLoader:
        """Return a ``DataLoader`` whose iterations read the rest of the epoch; ``options`` are torch's.

        With measured shares ``batch_size`` is that of equal ones: a step has so many records for each rank.
        """
        return StreamLoader(self, batch_size=batch_size, num_workers=num_workers, **options)

    def steps(self, loader: StreamLoader) -> Iterator[Step]:
        """Iterate over ``loader``, made by :meth:`loader`, one optimizer step at a time, with measured shares.

        Each step has one batch of this rank, with the weight of its mean loss; under ``run --replay`` a lost step may
        have several. Its records are recorded when it has been used. Raises :class:`UsageError` if a step ends before
        that.
        """
        if self.shares is None:
            raise UsageError('ElasticStream.steps: give shares="measured", or iterate over the loader itself')
        if not isinstance(loader, StreamLoader) or loader.dataset is not self:
            raise UsageError("ElasticStream.steps: this loader was not made by this stream's loader(...)")
        if self.recorder is not None:
            self.recorder.settle()
        while True:
            if self.recorder is not None:
                yield from loader.again(self.recorder)
            if not (yield from loader.until_shares_change(self.shares)):
                return
            # What was read ahead is dropped: it does not count as consumed.

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``. For the present epoch this changes nothing."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._left = None
            self._assignment = None

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every rank has consumed one more batch, of ``batch_size`` records. ``batch_idx`` is unused.

        Call it once per batch, in the order of the batches.
        """
        if self.shares is not None:
            raise UsageError("ElasticStream.record_batch: with measured shares each of the steps records itself")
        if self._assignment is None:
            raise UsageError("ElasticStream.record_batch: nothing has been assigned yet; iterate over a loader first")
        self._consumed = self._assignment.consume(self._consumed, batch_size)

    @property
    def backlog(self) -> int:
        """Records of the epoch that no rank has consumed, for ``state.observe(backlog=stream.backlog)``.

        It is 0 while lengths are unknown.
        """
        if self._assignment is not None:
            return self._assignment.left(self._consumed)
        left = self._whole_epoch() if self._left is None else self._left
        return total(left)

    def reset(self) -> None:
        """Drop the present assignment. The next iteration assigns the rest to its own world."""
        self._left, self._assignment = self._remaining(), None
        if self.shares is not None:
            self.shares.begin_world()

    def state_dict(self) -> dict[str, Any]:
        """Return the rest of the epoch and the lengths found so far; equal on every rank.

        It does not depend on the number of ranks. The values are JSON text, which is cheap to copy.
        """
        left = self._remaining()
        return {
            "epoch": self.epoch,
            "left": None if left is None else _ranges_as_text(left),
            "lengths": _as_text(self._lengths),
            "shards": self._fingerprint,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the progress. Raises :class:`DataError` if it is of other shards."""
        if state_dict["shards"] != self._fingerprint:
            raise DataError(
                "ElasticStream: this progress is of another list of shards; "
                "give the same names in the same order on every rank and in every run"
            )
        left = state_dict["left"]
        self.epoch = int(state_dict["epoch"])
        self._left = None if left is None else _ranges_of(left)
        self._lengths = tuple(None if word == _UNKNOWN else int(word) for word in state_dict["lengths"].split())
        self._assignment = None
        if self.shares is not None:
            self.shares.begin_world()

    def measure(self) -> None:
        """Count the records of shards of unknown length, each rank some of them. Every rank must call it at the same
        point.

        Best call it at the start of the training function. Without it, each rank
        counts all of these shards itself when it first iterates.
        """
        unknown = [number for number, length in enumerate(self._lengths) if length is None]
        comms = current_world.comms()
        if comms is None or not unknown:
            return self._measure_alone()
        rank, size = self.world()
        lengths = torch.zeros(len(unknown), dtype=torch.int64)
        for index in range(rank, len(unknown), size):
            lengths[index] = self._length(unknown[index])
        comms.sum(lengths, name="stream.lengths")
        learnt = dict(zip(unknown, lengths.tolist(), strict=True))
        self._lengths = tuple(learnt.get(number, length) for number, length in enumerate(self._lengths))
        return None

    def assign(self, workers: int) -> Assignment:
        """Assign the rest to the present world, for ``workers`` loader processes per rank; 0 reads in this process."""
        ranges, size = self._rest()
        made = self._assignment = Assignment(ranges, size, max(1, workers), self.drop_last)
        self._consumed = made.nothing_consumed()
        return made

    def assign_shares(self, rows: Rows, workers: int, *, drop_last: bool) -> SharedAssignment:
        """The same for ranks that take ``rows`` records in each step."""
        ranges, _ = self._rest()
        made = self._assignment = SharedAssignment(ranges, rows, max(1, workers), drop_last or self.drop_last)
        self._consumed = made.nothing_consumed()
        return made

    def assign_again(self, lanes: Lanes, rows: Rows, *, done: int) -> SharedAssignment:
        """Return to an earlier assignment, of which so many steps are done."""
        made = self._assignment = SharedAssignment(_ranges_of(lanes.ranges), rows, lanes.workers, lanes.drop_last)
        self._consumed = Consumed((done,))
        return made

    def read(self, ranges: Ranges) -> Iterator[Any]:
        """Read these records, in this process."""
        return self._read(ranges)

    def record_step(self) -> None:
        """Record a step with measured shares."""
        assert self._assignment is not None
        self._consumed = self._assignment.consume(self._consumed, 1)

    def _rest(self) -> tuple[Ranges, int]:
        """The records that no rank has consumed, and the size of the present world."""
        self._measure_alone()
        self._left = self._remaining()
        self._rank, size = self.world()
        return self._whole_epoch() if self._left is None else self._left, size

    def assigned(self, workers: int) -> Assignment | SharedAssignment:
        """Return the present assignment, or a new one if none fits."""
        assignment = self._assignment
        fits = assignment is not None and (assignment.size, assignment.workers) == (self.world()[1], max(1, workers))
        return assignment if assignment is not None and fits else self.assign(workers)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        if self.shares is not None and not self._loading:
            raise UsageError(
                "ElasticStream: with measured shares iterate over stream.steps(loader): batches have weights"
            )
        if worker is None and isinstance(self._assignment, SharedAssignment):
            return self._read(self._assignment.ranges_of(self._rank, 0))
        if worker is None:
            return self._read(self.assign(0).ranges_of(self._rank, 0))
        if self._assignment is None or not self._loading:
            raise UsageError("ElasticStream: a DataLoader with num_workers must be made by stream.loader(...)")
        # A loader process may be in no world; it reads the assignment of its parent.
        return self._read(self._assignment.ranges_of(self._rank, worker.id))

    def __len__(self) -> int:
        """The records of this rank in the last assignment; 0 when nothing is left."""
        return self._assigned().length_of(self._rank)

    def _assigned(self) -> Assignment | SharedAssignment:
        return self.assigned(self._assignment.workers if self._assignment else 0)

    def _read(self, ranges: Ranges) -> Iterator[Any]:
        for here in ranges:
            yield from self._read_range(here)

    def _read_range(self, here: Range) -> Iterator[Any]:
        name, length = self.shards[here.shard], self._lengths[here.shard]
        records = iter(self._open(name, here.start))
        reached = here.start
        for record in islice(records, here.stop - here.start):
            reached += 1
            yield record
        if reached < here.stop:
            raise DataError(f"shard {name!r} ended after {reached} of {length} records; {_KEEP}")
        if here.stop == length and next(records, _END) is not _END:
            raise DataError(f"shard {name!r} has more than its {length} records; {_KEEP}")

    def _remaining(self) -> Ranges | None:
        if self._assignment is None or not any(self._consumed.counts):
            return self._left
        return self._assignment.remaining(self._consumed)

    def _whole_epoch(self) -> Ranges:
        count = len(self.shards)
        order = shuffled(count, seed=self.seed, epoch=self.epoch).tolist() if self.shuffle else range(count)
        return joined(Range(number, 0, self._lengths[number] or 0) for number in order)

    def _measure_alone(self) -> None:
        if None in self._lengths:
            self._lengths = tuple(self._length(number) for number in range(len(self.shards)))

    def _length(self, number: int) -> int:
        length = self._lengths[number]
        if length is None:
            # It may have been counted before, and lost in a roll-back.
            length = self._counted.get(number)
        if length is None:
            length = self._counted[number] = self._count(self.shards[number])
        return length

    def _read_through(self, shard: str) -> int:
        return sum(1 for _ in self._open(shard, 0))


class StreamLoader(DataLoader[Any]):
    """A ``DataLoader``. Each iteration assigns the rest of the epoch for the present world, and reads a rank's part."""

    dataset: ElasticStream

    def __init__(self, stream: ElasticStream, **options: Any) -> None:
        for option, bad, why in _UNFIT:
            if options.get(option) == bad:
                raise UsageError(f"ElasticStream.loader: {option}={bad} does not work: {why}")
        if stream.shares is not None and options.get("batch_size") is None:
            raise UsageError("ElasticStream.loader: measured shares need batch_size=, that of equal shares")
        super().__init__(stream, **options)
        self._given = options

    def until_shares_change(self, shares: MeasuredShares) -> Generator[Step, None, bool]:
        """Yield steps, and return whether the shares have changed before the last one."""
        stream, (rank, size) = self.dataset, self.dataset.world()
        rows, changes = shares.rows((self.batch_size or 1) * size, size), shares.changes
        assignment = stream.assign_shares(rows, self.num_workers, drop_last=self.drop_last)
        shares.report(rows, rank)
        recorder, world = stream.recorder, None
        if recorder is not None:
            ranges = _ranges_as_text(assignment.ranges)
            lanes = Lanes(stream.epoch, ranges, assignment.workers, assignment.drop_last)
            world = recorder.world(stream, rows=rows, lanes=lanes)
        batches = self._of_shares(rows[rank]) if assignment.steps else iter(())
        for number in range(assignment.steps):
            parts = assignment.rows_in(number)
            length = sum(parts)
            step = Step(
                batches,
                [size * parts[rank] / length],
                length=length,
                rows=parts[rank],
                record=stream.record_step,
                recorded=None if recorder is None or world is None else recorder.step(world, at=number),
                shares=shares if parts == rows else None,
            )
            yield step
            step.demand_done("ElasticStream.steps")
            if recorder is not None:
                recorder.settle()
            if shares.changes != changes or (recorder is not None and self._lost(recorder) is not None):
                return True
        return False

    def _lost(self, recorder: Recorder) -> Deal | None:
        """The next step, if it is a lost one of this epoch."""
        for deal in recorder.lost(self.dataset, 1):
            world = deal.run.world
            if world.lanes is not None and world.rows is not None and world.lanes.epoch == self.dataset.epoch:
                return deal
        return None

    def again(self, recorder: Recorder) -> Iterator[Step]:
        """Yield the lost steps of this epoch, as the world that did them had assigned their records."""
        stream, present = self.dataset, self.dataset.world()[0]
        while (deal := self._lost(recorder)) is not None:
            world, number = deal.run.world, deal.run.at
            assert world.lanes is not None
            assert world.rows is not None
            assignment = stream.assign_again(world.lanes, world.rows, done=number)
            parts = assignment.rows_in(number)
            length = sum(parts)
            weights = [world.size * parts[rank] / length * deal.factor for rank in deal.parts]
            # All make equally many passes.
            filler = deal.parts[0] if deal.parts else present % world.size
            step = Step(
                self._read_again(
                    [assignment.ranges_in(number, rank) for rank in (*deal.parts, *[filler] * deal.padding)]
                ),
                weights + [0.0] * deal.padding,
                length=length,
                rows=sum(parts[rank] for rank in deal.parts),
                record=stream.record_step,
                recorded=recorder.again(
                    deal,
                    range(len(deal.parts) + (deal.padding > 0)),
                    samples=partial(self._samples, assignment, number, deal.parts),
                ),
            )
            yield step
            step.demand_done("ElasticStream.steps")
            recorder.settle()

    def _samples(self, assignment: SharedAssignment, number: int, parts: Sequence[int]) -> list[list[str]]:
        """The records of each part of a step, by shard and number: ``SHARD:NUMBER``."""
        shards, taken = self.dataset.shards, assignment.rows_in(number)
        return [
            [
                f"{shards[shard]}:{record}"
                for shard, start, stop in (assignment.ranges_in(number, rank) if taken[rank] else ())
                for record in range(start, stop)
            ]
            for rank in parts
        ]

    def _read_again(self, parts: Sequence[Ranges]) -> Iterator[Any]:
        """Read each part as a batch, in this process: a loader has one size for ever."""
        for ranges in parts:
            yield self.collate_fn(list(self.dataset.read(ranges)))

    def _of_shares(self, rows: int) -> Iterator[Any]:
        """Begin to read the present assignment, in batches of ``rows`` records. A loader has one size for ever."""
        self.dataset._loading = True
        try:
            return iter(DataLoader(self.dataset, **{**self._given, "batch_size": rows, "drop_last": False}))
        finally:
            self.dataset._loading = False

    def __iter__(self) -> Any:
        if self.dataset.shares is not None:
            raise UsageError(
                "ElasticStream: with measured shares iterate over stream.steps(loader): batches have weights"
            )
        self.dataset.assign(self.num_workers)
        self.dataset._loading = True  # loader processes are forked on the next line
        try:
            return super().__iter__()
        finally:
            self.dataset._loading = False

    def __len__(self) -> int:
        assignment = self.dataset.assigned(self.num_workers)
        if isinstance(assignment, SharedAssignment):
            return assignment.steps
        lengths = assignment.lengths
        size = self.batch_size or 1
        return sum(length // size if self.drop_last else -(-length // size) for length in lengths)


_UNFIT: Final = (
    ("persistent_workers", True, "loader processes must start from the records that are left by then"),
    ("in_order", False, "the order of the batches shows which records were consumed"),
)
_KEEP: Final = "shards must stay as they are while a job reads them"
_END: Final = object()


def takes_start(open_shard: Callable[..., Any]) -> bool:
    """Whether ``open_shard`` has a second positional parameter that is required, or whose name is ``start``."""
    try:
        parameters = list(inspect.signature(open_shard).parameters.values())
    except ValueError:  # a builtin without a signature
        return True
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return True
    return len(places) > 1 and (places[1].default is inspect.Parameter.empty or places[1].name == "start")


class _Skipping:
    """Adds ``start`` to an ``open_shard`` without it. It is a class, so that it can be pickled for loader processes."""

    def __init__(self, open_shard: Callable[[str], Iterable[Any]]) -> None:
        self._open_shard = open_shard

    def __call__(self, shard: str, start: int) -> Iterator[Any]:
        return islice(self._open_shard(shard), start, None)


@functools.lru_cache(maxsize=8)
def _as_text(lengths: tuple[int | None, ...]) -> str:
    """Format the lengths as text, once for all commits of an epoch."""
    return " ".join(_UNKNOWN if length is None else str(length) for length in lengths)


def fingerprint(shards: Sequence[str]) -> str:
    """Hash the shards' names, in their order."""
    return hashlib.blake2b("\0".join(map(str, shards)).encode(), digest_size=16).hexdigest()


def _ranges_as_text(ranges: Ranges) -> str:
    return " ".join(f"{shard}:{start}-{stop}" for shard, start, stop in ranges)


def _ranges_of(text: str) -> Ranges:
    return tuple(map(_range, text.split()))


def _range(word: str) -> Range:
    shard, _, span = word.partition(":")
    start, _, stop = span.partition("-")
    return Range(int(shard), int(start), int(stop))
