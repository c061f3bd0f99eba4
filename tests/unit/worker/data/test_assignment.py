"""The records of each lane: pure, and the same on every rank."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.worker.data.assignment import Assignment, Range, at, joined, total
from tests.unit.worker.shards import LENGTHS, Files, PlacedStream, records


@given(
    lengths=LENGTHS,
    size=st.integers(1, 9),
    workers=st.integers(1, 4),
    drop_last=st.booleans(),
    batches=st.lists(st.integers(1, 20), max_size=20),
)
def test_an_assignment_gives_every_record_to_one_lane_and_knows_the_rest(
    lengths: list[int], size: int, workers: int, drop_last: bool, batches: list[int]
) -> None:
    ranges = joined(Range(shard, 0, length) for shard, length in enumerate(lengths))
    assignment = Assignment(ranges, size, workers, drop_last)
    parts = [records(assignment.ranges_of(rank, worker)) for rank in range(size) for worker in range(workers)]
    assert [len(part) for part in parts] == [*assignment.lengths] * size
    assert sum(assignment.lengths) == assignment.each
    assert records(assignment.remaining(assignment.nothing_consumed())) == records(ranges)

    consumed = assignment.nothing_consumed()
    for count in batches:
        consumed = assignment.consume(consumed, count)
    left = records(assignment.remaining(consumed))
    assert len(set(left)) == len(left)
    used = {
        record
        for rank in range(size)
        for worker, count in enumerate(consumed.counts)
        for record in records(assignment.ranges_of(rank, worker))[:count]
    }
    padding = 0 if drop_last else assignment.each * size - total(ranges)
    assert set(left) | used == set(records(ranges))
    assert len(set(left) & used) <= padding < size


@given(lengths=LENGTHS, cuts=st.lists(st.integers(0, 700), max_size=6))
def test_cutting_ranges_anywhere_and_joining_them_gives_them_back(lengths: list[int], cuts: list[int]) -> None:
    ranges = joined(Range(shard, 0, length) for shard, length in enumerate(lengths))
    edges = [0, *sorted(min(cut, total(ranges)) for cut in cuts), total(ranges)]
    assert joined(at(ranges, list(itertools.pairwise(edges)))) == ranges


def test_lanes_read_whole_stretches_and_nothing_twice() -> None:
    files = Files([10, 10, 10, 10])
    for rank in range(2):
        list(PlacedStream((rank, 2), files, lengths=files.lengths))
    assert set(files.read.values()) == {1}
    assert set(files.read) == files.all()
