"""Shards in memory, and streams over them that are told their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from hvd_elastic_ext.worker.data.assignment import Assignment
from hvd_elastic_ext.worker.data.stream import ElasticStream

Record = tuple[int, int]
"""Number of the shard and of the record in it."""
FEW, MANY = st.lists(st.integers(0, 3), max_size=4), st.lists(st.integers(0, 60), max_size=12)
LENGTHS = FEW | MANY


class Files:
    """Shards in memory that count how often each record was read."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.names = [str(number) for number in range(len(lengths))]
        self.read: Counter[Record] = Counter()

    def open(self, shard: str, start: int) -> Iterator[Record]:
        for index in range(start, self.lengths[int(shard)]):
            self.read[int(shard), index] += 1
            yield int(shard), index

    def all(self) -> set[Record]:
        return {(shard, index) for shard, length in enumerate(self.lengths) for index in range(length)}


class PlacedStream(ElasticStream):
    """A stream that is told its place, so that worlds of any size need no processes."""

    def __init__(self, place: tuple[int, int], files: Files, **options: Any) -> None:
        self.place = place
        super().__init__(files.names, files.open, **options)

    def world(self) -> tuple[int, int]:
        return self.place


def records(ranges: Any) -> list[Record]:
    return [(shard, index) for shard, start, stop in ranges for index in range(start, stop)]


def as_loaded(assignment: Assignment, rank: int, batch: int) -> Iterator[list[Record]]:
    """The batches of one rank in the order in which torch's loader processes deliver them."""
    parts = [records(assignment.ranges_of(rank, worker)) for worker in range(assignment.workers)]
    while any(parts):
        for part in parts:
            if part:
                yield part[:batch]
                del part[:batch]


def records_of(stream: ElasticStream, worker: int) -> list[Record]:
    assignment = stream.assigned(3)
    return records(assignment.ranges_of(0, worker))[stream._consumed.counts[worker] :]
