"""Which lane reads which records: pure, and the same on every rank."""

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
def test_a_deal_gives_every_record_to_one_lane_and_knows_what_is_left(
    lengths: list[int], size: int, workers: int, drop_last: bool, batches: list[int]
) -> None:
    ranges = joined(Range(shard, 0, length) for shard, length in enumerate(lengths))
    deal = Assignment(ranges, size, workers, drop_last)
    hands = [records(deal.hand(rank, worker)) for rank in range(size) for worker in range(workers)]
    assert [len(hand) for hand in hands] == [*deal.lengths] * size
    assert sum(deal.lengths) == deal.each
    assert records(deal.left(deal.nothing_consumed())) == records(ranges)

    taken = deal.nothing_consumed()
    for count in batches:
        taken = deal.take(taken, count)
    left = records(deal.left(taken))
    assert len(set(left)) == len(left)
    consumed = {
        record
        for rank in range(size)
        for worker, count in enumerate(taken.counts)
        for record in records(deal.hand(rank, worker))[:count]
    }
    padding = 0 if drop_last else deal.each * size - total(ranges)
    assert set(left) | consumed == set(records(ranges))
    assert len(set(left) & consumed) <= padding < size
    for rank in range(size):
        for worker, count in enumerate(taken.counts):
            assert records(deal.hand(rank, worker, taken=count)) == records(deal.hand(rank, worker))[count:]


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


def test_every_rank_knows_every_ranks_leases() -> None:
    files = Files([4, 4, 4, 4])
    streams = [PlacedStream((rank, 2), files, shuffle=False) for rank in range(2)]
    for stream in streams:
        stream.deal(0)
        stream.record_batch(0, 5)
    mine, theirs = streams[1].leases(), streams[0].leases(rank=1)
    assert mine == theirs
    assert (mine.finished, mine.in_flight, mine.waiting) == ((Range(2, 0, 4),), (Range(3, 0, 4),), ())
    assert streams[0].leases().waiting == ()
    state = streams[0].state_dict()
    streams[0].reset()
    assert streams[0].leases().in_flight == (), "returned: the next deal begins"
    assert streams[0].state_dict() == state == streams[1].state_dict()
