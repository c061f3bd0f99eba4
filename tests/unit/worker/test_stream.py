"""Dealing records of shards: each exactly once an epoch, whatever becomes of the ranks."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.worker import world as worlds
from hvd_elastic_ext.worker.data.leases import Deal, Range, at, joined, total
from hvd_elastic_ext.worker.data.stream import ElasticStream
from tests.unit.worker.histories import HISTORIES, Committed, World

# Machines with few cores are welcome to run these tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

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


class Placed(ElasticStream):
    """A stream that is told its place, so that worlds of any size need no processes."""

    def __init__(self, place: tuple[int, int], files: Files, **options: Any) -> None:
        self.place = place
        super().__init__(files.names, files.open, **options)

    def world(self) -> tuple[int, int]:
        return self.place


def records(ranges: Any) -> list[Record]:
    return [(shard, index) for shard, start, stop in ranges for index in range(start, stop)]


Job = list[Placed]
"""The streams of a job's processes. Survivors bring what they had recorded, newcomers nothing."""


def enter(world: World, progress: dict[str, Any], files: Files, *, job: Job | None = None, **options: Any) -> Job:
    streams = (job or [])[: world.size]
    streams += [Placed((0, 1), files, **options) for _ in range(world.size - len(streams))]
    streams.reverse()  # whoever survives has another rank
    for rank, stream in enumerate(streams):
        stream.load_state_dict(progress)
        stream.place = (rank, world.size)
    return streams


def as_loaded(deal: Deal, rank: int, batch: int) -> Iterator[list[Record]]:
    """The batches of one rank in the order in which torch's loader processes deliver them."""
    hands = [records(deal.hand(rank, worker)) for worker in range(deal.workers)]
    while any(hands):
        for hand in hands:
            if hand:
                yield hand[:batch]
                del hand[:batch]


def live_through(world: World, streams: list[Placed], last: Committed, *, batch: int, workers: int) -> Committed:
    consumed = list(last.consumed)
    deals = [stream.deal(workers) for stream in streams]
    steps = [list(as_loaded(deal, rank, batch)) for rank, deal in enumerate(deals)]
    assert len({tuple(map(len, batches)) for batches in steps}) == 1, "ranks do the same batches"
    for number, parts in enumerate(zip(*steps, strict=True)):
        if number == world.batches:
            break
        for stream, part in zip(streams, parts, strict=True):
            stream.record_batch(number, len(part))
        consumed += [record for part in parts for record in part]
        said = [stream.state_dict() for stream in streams]
        assert all(state == said[0] for state in said), "every rank says the same, without asking the others"
        if (number + 1) % world.commit_every == 0:
            last = Committed(said[0], list(consumed))
    return last if world.end == "loss" else Committed(streams[0].state_dict(), consumed)


@given(
    lengths=LENGTHS,
    history=HISTORIES,
    batch=st.integers(1, 16),
    workers=st.integers(0, 3),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_each_record_is_consumed_once_an_epoch_through_any_losses_and_resizes(
    lengths: list[int], history: list[World], batch: int, workers: int, drop_last: bool, shuffle: bool
) -> None:
    files = Files(lengths)
    options = {"drop_last": drop_last, "shuffle": shuffle}
    state, job = Committed(Placed((0, 1), files, **options).state_dict(), []), None
    final = World(size=history[-1].size, batches=10_000, commit_every=1, end="resize")
    padding = 0
    for epoch in range(2):
        for world in [*history, final]:
            entered = len(state.consumed)
            job = enter(world, state.progress, files, job=job, **options)
            state = live_through(world, job, state, batch=batch, workers=workers)
            if len(state.consumed) > entered:
                padding = max(padding, world.size - 1)
        times = Counter(state.consumed)
        extra = sum(times.values()) - len(times)
        if drop_last:
            assert extra == 0
            assert len(files.all()) - len(times) < final.size
        else:
            assert set(times) == files.all()
            # With several loader processes a world may end between their last batches, and the next one pad again.
            rounds = len(history) + 1 if workers > 1 else 1
            assert extra <= padding * rounds
        job = enter(final, state.progress, files, job=job, **options)
        assert [len(stream) for stream in job] == [0] * final.size, "everybody sees the end alike"
        for stream in job:
            stream.set_epoch(epoch + 1)
        state = Committed(job[0].state_dict(), [])


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
    deal = Deal(ranges, size, workers, drop_last)
    hands = [records(deal.hand(rank, worker)) for rank in range(size) for worker in range(workers)]
    assert [len(hand) for hand in hands] == [*deal.lengths] * size
    assert sum(deal.lengths) == deal.each
    assert records(deal.left(deal.nothing_taken())) == records(ranges)

    taken = deal.nothing_taken()
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
        list(Placed((rank, 2), files, lengths=files.lengths))
    assert set(files.read.values()) == {1}
    assert set(files.read) == files.all()


def test_a_shard_half_read_by_a_lost_rank_is_continued_by_another() -> None:
    files = Files([8, 8])
    lost = Placed((1, 2), files, lengths=[8, 8], shuffle=False)
    running = iter(lost.loader(batch_size=None))
    assert [tuple(next(running)) for _ in range(3)] == [(1, 0), (1, 1), (1, 2)]
    for index in range(3):
        lost.record_batch(index, 1)
    assert lost.leases().in_flight == (Range(1, 0, 8),)

    heir = Placed((0, 1), files, lengths=[8, 8], shuffle=False)
    heir.load_state_dict(lost.state_dict())
    files.read.clear()
    assert list(heir) == [(0, index) for index in range(3, 8)] + [(1, index) for index in range(3, 8)]
    assert (1, 0) not in files.read, "what was consumed is not even opened"


def test_every_rank_knows_every_ranks_leases() -> None:
    files = Files([4, 4, 4, 4])
    streams = [Placed((rank, 2), files, shuffle=False) for rank in range(2)]
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


def test_an_opener_that_cannot_start_in_the_middle_is_read_past_what_was_consumed() -> None:
    opened: list[str] = []

    def open_shard(shard: str) -> list[str]:
        opened.append(shard)
        return [f"{shard}{index}" for index in range(4)]

    stream = ElasticStream(["a", "b"], open_shard, shuffle=False, lengths=[4, 4])
    stream.deal(0)
    stream.record_batch(0, 6)
    assert list(stream) == ["b2", "b3"]
    assert opened == ["b"]


def test_unknown_lengths_are_counted_once_and_travel_with_the_state() -> None:
    files = Files([3, 5])
    stream = Placed((0, 1), files)
    assert stream.state_dict()["lengths"] == "? ?"
    assert len(list(stream)) == 8
    assert set(files.read.values()) == {2}, "read once to count and once to train"
    stream.set_epoch(1)
    list(stream)
    newcomer = Placed((0, 1), files)
    newcomer.load_state_dict(stream.state_dict())
    list(newcomer)
    assert set(files.read.values()) == {4}
    stream.load_state_dict(Placed((0, 1), files).state_dict())  # rolled back to before they were counted
    list(stream)
    assert set(files.read.values()) == {5}


def test_a_given_way_to_count_is_used_instead_of_reading() -> None:
    files = Files([3, 5])
    stream = Placed((0, 1), files, count=lambda shard: files.lengths[int(shard)])
    assert len(list(stream)) == 8
    assert set(files.read.values()) == {1}


class TwoRanks:
    """A world of two in one process: sums with what the other rank would have sent."""

    def __init__(self, others: list[int]) -> None:
        self.others = others

    def rank(self) -> int:
        return 1

    def size(self) -> int:
        return 2

    def sum(self, data: Tensor, *, name: str) -> None:
        data += torch.tensor(self.others)


def test_ranks_share_the_counting() -> None:
    files = Files([3, 4, 5, 6])
    stream = Placed((1, 2), files)
    worlds.use(TwoRanks([3, 0, 5, 0]))  # type: ignore[arg-type]
    try:
        stream.measure()
        stream.measure()  # nothing is left to ask for
    finally:
        worlds.use(None)
    assert stream.state_dict()["lengths"] == "3 4 5 6"
    assert {shard for shard, _ in files.read} == {1, 3}


def test_the_state_is_text_that_json_can_hold() -> None:
    files = Files([5, 5])
    stream = Placed((0, 1), files, shuffle=False)
    stream.deal(0)
    stream.record_batch(0, 7)
    state = json.loads(json.dumps(stream.state_dict()))
    assert (state["left"], state["lengths"]) == ("1:2-5", "5 5")
    again = Placed((0, 1), files, shuffle=False)
    again.load_state_dict(state)
    assert again.state_dict() == state, "loading changes nothing"


def test_set_epoch_again_keeps_progress_and_the_next_one_starts_over() -> None:
    files = Files([5, 5])
    stream = Placed((0, 1), files)
    stream.set_epoch(1)
    stream.deal(0)
    stream.record_batch(0, 7)
    stream.set_epoch(1)
    assert len(list(stream)) == 3
    stream.set_epoch(2)
    assert len(list(stream)) == 10


@pytest.mark.parametrize(("given_length", "complaint"), [(4, "more than its 4"), (7, "ended after 5 of 7")])
def test_a_shard_of_another_length_than_was_said_is_an_error_not_a_loss(given_length: int, complaint: str) -> None:
    files = Files([5])
    with pytest.raises(Permanent, match=complaint):
        list(Placed((0, 1), files, lengths=[given_length]))


def test_progress_over_other_shards_is_refused() -> None:
    state = Placed((0, 1), Files([5])).state_dict()
    with pytest.raises(Permanent, match="another list of shards"):
        Placed((0, 1), Files([5, 5])).load_state_dict(state)


def test_what_cannot_work_is_refused_in_one_line() -> None:
    files = Files([5])
    stream = Placed((0, 1), files)
    for attempt in (
        lambda: stream.record_batch(0, 1),
        lambda: stream.loader(num_workers=1, persistent_workers=True),
        lambda: Placed((0, 1), files, lengths=[1, 2]),
    ):
        with pytest.raises(UsageError) as error:
            attempt()
        assert "\n" not in str(error.value)


def test_loader_processes_of_a_loader_that_does_not_know_the_stream_are_refused() -> None:
    running: Any = iter(DataLoader(Placed((0, 1), Files([5])), num_workers=1))
    try:
        with pytest.raises(UsageError, match=r"stream\.loader"):
            next(running)
    finally:
        running._shutdown_workers()


@pytest.mark.parametrize("workers", [0, 2])
def test_real_loader_processes_deliver_as_dealt_and_what_they_fetched_ahead_is_not_consumed(workers: int) -> None:
    files = Files([7, 0, 12, 5, 9])
    stream = Placed((1, 2), files)
    ahead = {"prefetch_factor": 4} if workers else {}
    loader = stream.loader(batch_size=2, num_workers=workers, **ahead)
    steps = list(as_loaded(stream.deal(workers), 1, 2))
    assert len(loader) == len(steps)
    running = iter(loader)
    consumed: list[list[int]] = []
    for number in range(4):
        batch = next(running)
        consumed.append(torch.stack(batch, 1).tolist())
        stream.record_batch(number, len(batch[0]))
    assert consumed == [[list(record) for record in batch] for batch in steps[:4]]
    commit = stream.state_dict()
    stream.record_batch(4, len(next(running)[0]))

    stream.load_state_dict(commit)
    stream.place = (0, 1)  # the other rank is lost: all that is left comes here
    rest = [tuple(record) for batch in loader for record in torch.stack(batch, 1).tolist()]
    other = [record for batch in list(as_loaded(Placed((0, 2), files).deal(workers), 0, 2))[:4] for record in batch]
    done = [tuple(record) for batch in consumed for record in batch]
    assert Counter(rest + other + done) == Counter(files.all())
    assert len(loader) == len(list(as_loaded(stream.dealt(workers), 0, 2)))
    del running


def test_a_loader_goes_on_from_what_was_recorded_when_iterated_again() -> None:
    files = Files([6, 6])
    stream = Placed((0, 1), files, shuffle=False)
    loader = stream.loader(batch_size=2, num_workers=2)
    for number, batch in enumerate(loader):
        stream.record_batch(number, len(batch[0]))
        if number == 2:
            break
    left = records(stream.dealt(2).left(stream._taken))
    again = sorted(tuple(record) for batch in loader for record in torch.stack(batch, 1).tolist())
    assert again == sorted(left)
    assert len(again) == 6


class InNoWorldThere(Placed):
    def world(self) -> tuple[int, int]:
        assert get_worker_info() is None, "a loader process that was started empty is in no world"
        return super().world()


def test_loader_processes_that_start_empty_read_what_was_dealt_to_their_rank() -> None:
    stream = InNoWorldThere((2, 3), Files([9, 6]), shuffle=False)
    loader = stream.loader(batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert [torch.stack(batch, 1).tolist() for batch in loader] == [[[1, 1], [1, 2]], [[1, 3], [1, 4]], [[1, 5]]]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("records", "batch"), [(1, 4), (16, 4), (17, 4), (23, 4), (26, 5), (29, 2)])
def test_torch_delivers_in_the_order_that_is_counted_on(records: int, batch: int, drop_last: bool) -> None:
    stream = Placed((0, 1), Files([records]))
    loader = stream.loader(batch_size=batch, num_workers=3, drop_last=drop_last)
    expected = [part for part in as_loaded(stream.deal(3), 0, batch) if len(part) == batch or not drop_last]
    assert len(loader) == len(expected)
    consumed: list[Record] = []
    for number, part in enumerate(loader):
        consumed += [(shard, index) for shard, index in torch.stack(part, 1).tolist()]
        stream.record_batch(number, len(part[0]))
        left = {record for worker in range(3) for record in records_of(stream, worker)}
        assert left == {(0, index) for index in range(records)} - set(consumed), "what is left is what did not come"
    assert consumed == [record for part in expected for record in part]


def records_of(stream: ElasticStream, worker: int) -> list[Record]:
    deal = stream.dealt(3)
    return records(deal.hand(0, worker, taken=stream._taken.counts[worker]))
