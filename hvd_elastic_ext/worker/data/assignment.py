"""Who reads which records of which shards: pure arithmetic on what is left of an epoch.

What is left is a list of ranges. A deal cuts the row of all their records into
one lane a rank, and each lane into one sub-lane a loader process. All lanes are
equally long and all ranks take equally many records at a time, so how far every
lane has come is known to every rank, and what is left after a loss or a resize
is a list of ranges again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple


class Range(NamedTuple):
    """Records ``start`` to ``stop`` - 1 of the shard with this number."""

    shard: int
    start: int
    stop: int


Ranges = tuple[Range, ...]
Span = tuple[int, int]
"""Positions in the row of all records of some ranges."""


def total(ranges: Iterable[Range]) -> int:
    return sum(stop - start for _, start, stop in ranges)


def joined(ranges: Iterable[Range]) -> Ranges:
    """Return the same records in the same order, without empty ranges, and without cuts where none are needed."""
    found: list[Range] = []
    for here in ranges:
        if here.start == here.stop:
            continue
        if found and found[-1].shard == here.shard and found[-1].stop == here.start:
            found[-1] = found[-1]._replace(stop=here.stop)
        else:
            found.append(here)
    return tuple(found)


def at(ranges: Sequence[Range], spans: Sequence[Span]) -> Iterator[Range]:
    """Yield the records at ``spans``, which are in order and do not overlap."""
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
    """Records that every rank has consumed from each of its sub-lanes, and whose turn is next."""

    counts: tuple[int, ...]
    turn: int = 0


@dataclass(frozen=True)
class Assignment:
    """``ranges`` dealt to ``size`` ranks with ``workers`` loader processes each.

    What does not divide is padded: a lane that is one record short ends in a
    record that another lane has too. With ``drop_last`` it is not dealt.
    """

    ranges: Ranges
    size: int
    workers: int = 1
    drop_last: bool = False

    @cached_property
    def records(self) -> int:
        return total(self.ranges)

    @property
    def each(self) -> int:
        """Records that each rank gets, padding among them."""
        return self.records // self.size if self.drop_last else -(-self.records // self.size)

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Records in each of a rank's sub-lanes, padding among them."""
        base, more = divmod(self.each, self.workers)
        return tuple(base + (worker < more) for worker in range(self.workers))

    def nothing_consumed(self) -> Consumed:
        return Consumed((0,) * self.workers)

    def take(self, taken: Consumed, count: int) -> Consumed:
        """Return ``taken`` after one more batch of ``count`` records on every rank.

        Loader processes deliver in turn; those at their end are passed over.
        """
        counts = list(taken.counts)
        for step in range(self.workers):
            worker = (taken.turn + step) % self.workers
            if counts[worker] < self.lengths[worker]:
                counts[worker] = min(self.lengths[worker], counts[worker] + count)
                return Consumed(tuple(counts), (worker + 1) % self.workers)
        return taken

    def hand(self, rank: int, worker: int, *, taken: int = 0) -> Ranges:
        """What this sub-lane still has to read."""
        start, stop = self._spans(rank)[worker]
        own = tuple(at(self.ranges, [(min(start + taken, stop), stop)]))
        padded = stop - start < self.lengths[worker]
        if not padded or taken == self.lengths[worker]:
            return own
        position = rank % self.records
        return (*own, *at(self.ranges, [(position, position + 1)]))

    def left(self, taken: Consumed) -> Ranges:
        """What nobody has consumed, in the order in which it will be dealt next."""
        spans = [
            (min(start + count, stop), stop)
            for rank in range(self.size)
            for (start, stop), count in zip(self._spans(rank), taken.counts, strict=True)
        ]
        if self.drop_last:
            spans.append((self.each * self.size, self.records))
        return joined(at(self.ranges, spans))

    def _spans(self, rank: int) -> list[Span]:
        """The positions of a rank's sub-lanes, without padding."""
        base, more = divmod(self.records, self.size)
        start = rank * base + (0 if self.drop_last else min(rank, more))
        lengths = list(self.lengths)
        if not self.drop_last and more and rank >= more:
            lengths[self._shortened] -= 1
        ends = [start + end for end in accumulate(lengths)]
        return list(zip([start, *ends], ends, strict=False))

    @property
    def _shortened(self) -> int:
        """The sub-lane that ends in padding: the last of the longest ones."""
        return (self.each - 1) % self.workers
