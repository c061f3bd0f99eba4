"""Assigns the records of shards to ranks and loader processes. Pure arithmetic on the rest of an epoch.

The rest is a list of ranges. An assignment cuts the row of all their records into one lane per rank, and each lane
into one sub-lane per loader process. All lanes have the same length, and all ranks advance equally. So every rank knows
the progress of each lane, and after a loss or a resize the rest is a list of ranges again. In a
:class:`SharedAssignment` lanes are as long as the shares of their ranks, and all ranks advance by steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from hvd_elastic_ext.worker.data.shares import scaled


class Range(NamedTuple):
    """Records ``start`` to ``stop`` - 1 of the shard with this number."""

    shard: int
    start: int
    stop: int


Ranges = tuple[Range, ...]
Span = tuple[int, int]
"""Positions in the row of all records."""


def total(ranges: Iterable[Range]) -> int:
    """Return the number of records in all ``ranges``."""
    return sum(stop - start for _, start, stop in ranges)


def joined(ranges: Iterable[Range]) -> Ranges:
    """Return the same records in order, without empty ranges, and with adjacent ranges joined."""
    merged: list[Range] = []
    for here in ranges:
        if here.start == here.stop:
            continue
        if merged and merged[-1].shard == here.shard and merged[-1].stop == here.start:
            merged[-1] = merged[-1]._replace(stop=here.stop)
        else:
            merged.append(here)
    return tuple(merged)


def at(ranges: Sequence[Range], spans: Sequence[Span]) -> Iterator[Range]:
    """Yield the ranges of the records at ``spans``, which are in order and do not overlap."""
    behind, index = 0, 0
    for start, stop in spans:
        while start < stop:
            here = ranges[index]
            end = behind + here.stop - here.start
            if start < end:
                upto = min(stop, end)
                yield Range(here.shard, here.start + start - behind, here.start + upto - behind)
                start = upto
            if start >= end:
                behind, index = end, index + 1


@dataclass(frozen=True, slots=True)
class Consumed:
    """The number of records that every rank has consumed of each sub-lane, and the sub-lane of the next batch."""

    counts: tuple[int, ...]
    turn: int = 0


@dataclass(frozen=True)
class Assignment:
    """``ranges`` assigned to ``size`` ranks with ``workers`` loader processes each.

    A lane that is one record short is padded with a record of another lane. With ``drop_last``, the surplus records are
    left out instead.
    """

    ranges: Ranges
    size: int
    workers: int = 1
    drop_last: bool = False

    @cached_property
    def records(self) -> int:
        """Records in all ranges, without padding, and with those that ``drop_last`` leaves out."""
        return total(self.ranges)

    @property
    def each(self) -> int:
        """Records per rank, padding included."""
        return self.records // self.size if self.drop_last else -(-self.records // self.size)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Records in each sub-lane of a rank, padding included."""
        base, more = divmod(self.each, self.workers)
        return tuple(base + (worker < more) for worker in range(self.workers))

    def nothing_consumed(self) -> Consumed:
        """Return the state at the start: 0 records consumed of every sub-lane, and the first one is next."""
        return Consumed((0,) * self.workers)

    def consume(self, consumed: Consumed, count: int) -> Consumed:
        """Return ``consumed`` after one more batch of ``count`` records on every rank.

        Loader processes deliver in turn; those at their end are skipped.
        """
        counts = list(consumed.counts)
        for step in range(self.workers):
            worker = (consumed.turn + step) % self.workers
            if counts[worker] < self.lengths[worker]:
                counts[worker] = min(self.lengths[worker], counts[worker] + count)
                return Consumed(tuple(counts), (worker + 1) % self.workers)
        return consumed

    def length_of(self, rank: int) -> int:
        """Records of a rank, padding included."""
        return self.each

    def left(self, consumed: Consumed) -> int:
        """Return the number of records that no rank has consumed."""
        return max(0, self.records - self.size * sum(consumed.counts))

    def ranges_of(self, rank: int, worker: int) -> Ranges:
        """Return the ranges of a sub-lane."""
        start, stop = self._spans(rank)[worker]
        own = tuple(at(self.ranges, [(start, stop)]))
        if stop - start == self.lengths[worker]:
            return own  # without padding
        position = rank % self.records
        return (*own, *at(self.ranges, [(position, position + 1)]))

    def remaining(self, consumed: Consumed) -> Ranges:
        """Return the records that no rank has consumed, in the order of the next assignment."""
        spans = [
            (min(start + count, stop), stop)
            for rank in range(self.size)
            for (start, stop), count in zip(self._spans(rank), consumed.counts, strict=True)
        ]
        if self.drop_last:
            spans.append((self.each * self.size, self.records))
        return joined(at(self.ranges, spans))

    def _spans(self, rank: int) -> list[Span]:
        """Return the positions of a rank's sub-lanes, without padding."""
        base, more = divmod(self.records, self.size)
        start = rank * base + (0 if self.drop_last else min(rank, more))
        lengths = list(self.lengths)
        if not self.drop_last and more and rank >= more:
            lengths[self._shortened] -= 1
        ends = [start + end for end in accumulate(lengths)]
        return list(zip([start, *ends], ends, strict=False))

    @property
    def _shortened(self) -> int:
        """The sub-lane with the padding: the last of the longest ones."""
        return (self.each - 1) % self.workers


@dataclass(frozen=True)
class SharedAssignment:
    """``ranges`` assigned to ranks of which each takes ``rows`` records a step, by rank, with ``workers`` loader
    processes each.

    The last step has the records that are left, in the same shares; a rank that gets none of them reads one of another,
    which must not count. With ``drop_last`` there is no such step. The counts of :class:`Consumed` are here one number:
    the steps that are done.
    """

    ranges: Ranges
    rows: tuple[int, ...]
    workers: int = 1
    drop_last: bool = False

    @cached_property
    def records(self) -> int:
        """Records in all ranges, with those that ``drop_last`` leaves out."""
        return total(self.ranges)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.rows)

    @cached_property
    def last(self) -> tuple[int, ...] | None:
        """Records of each rank in an incomplete last step; None if there is none."""
        rest = self.records % sum(self.rows)
        return scaled(self.rows, rest) if rest and not self.drop_last else None

    @property
    def steps(self) -> int:
        """Steps of all ranks together."""
        return self.records // sum(self.rows) + (self.last is not None)

    def rows_in(self, step: int) -> tuple[int, ...]:
        """Return the records of each rank in a step."""
        return self.last if self.last is not None and step == self.steps - 1 else self.rows

    def nothing_consumed(self) -> Consumed:
        """Return the state at the start."""
        return Consumed((0,))

    def consume(self, consumed: Consumed, count: int) -> Consumed:
        """Return ``consumed`` after ``count`` more steps."""
        return Consumed((min(self.steps, consumed.counts[0] + count),))

    def length_of(self, rank: int) -> int:
        """Records of a rank, without one that must not count."""
        return self._in_steps(rank, range(self.steps))

    def left(self, consumed: Consumed) -> int:
        """Return the number of records that no rank has consumed."""
        done = range(consumed.counts[0])
        return self.records - sum(self._in_steps(rank, done) for rank in range(self.size))

    def ranges_of(self, rank: int, worker: int) -> Ranges:
        """Return the ranges of a sub-lane. Loader processes deliver steps in turn."""
        own = tuple(at(self.ranges, [self._spans(rank)[worker]]))
        if self.last is None or self.last[rank] or worker != (self.steps - 1) % self.workers:
            return own
        return (*own, *at(self.ranges, [(0, 1)]))

    def ranges_in(self, step: int, rank: int) -> Ranges:
        """Return the ranges of a rank's records in a step: of one record, which must not count, if it has none."""
        count = self.rows_in(step)[rank]
        if not count:
            return tuple(at(self.ranges, [(0, 1)]))
        worker = step % self.workers
        start = self._spans(rank)[worker][0] + self._in_steps(rank, range(worker, step, self.workers))
        return tuple(at(self.ranges, [(start, start + count)]))

    def remaining(self, consumed: Consumed) -> Ranges:
        """Return the records that no rank has consumed, in the order of the next assignment."""
        done = consumed.counts[0]
        spans = [
            (start + self._in_steps(rank, range(worker, done, self.workers)), stop)
            for rank in range(self.size)
            for worker, (start, stop) in enumerate(self._spans(rank))
        ]
        spans.append((sum(map(self.length_of, range(self.size))), self.records))
        return joined(at(self.ranges, spans))

    def _in_steps(self, rank: int, steps: range) -> int:
        """Records of a rank in some steps."""
        lacks = 0 if self.last is None or self.steps - 1 not in steps else self.rows[rank] - self.last[rank]
        return len(steps) * self.rows[rank] - lacks

    def _spans(self, rank: int) -> list[Span]:
        """Return the positions of a rank's sub-lanes."""
        start = sum(self.length_of(before) for before in range(rank))
        lengths = [self._in_steps(rank, range(worker, self.steps, self.workers)) for worker in range(self.workers)]
        ends = [start + end for end in accumulate(lengths)]
        return list(zip([start, *ends], ends, strict=False))
