"""The stream: each record exactly once per epoch, through any losses and resizes."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import DataError, UsageError
from hvd_elastic_ext.worker.data.stream import ElasticStream
from tests.unit.worker.histories import HISTORIES, Committed, World
from tests.unit.worker.placed_samplers import enter
from tests.unit.worker.shards import LENGTHS, Files, PlacedStream, as_loaded


def live_through(world: World, streams: list[PlacedStream], last: Committed, *, batch: int, workers: int) -> Committed:
    consumed = list(last.consumed)
    assignments = [stream.assign(workers) for stream in streams]
    steps = [list(as_loaded(assignment, rank, batch)) for rank, assignment in enumerate(assignments)]
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

    def make() -> PlacedStream:
        return PlacedStream((0, 1), files, **options)

    state, job = Committed(make().state_dict(), []), None
    final = World(size=history[-1].size, batches=10_000, commit_every=1, end="resize")
    padding = 0
    for epoch in range(2):
        for world in [*history, final]:
            entered = len(state.consumed)
            job = enter(world, state.progress, make, job=job)
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
        job = enter(final, state.progress, make, job=job)
        assert [len(stream) for stream in job] == [0] * final.size, "everybody sees the end alike"
        for stream in job:
            stream.set_epoch(epoch + 1)
        state = Committed(job[0].state_dict(), [])


def test_a_shard_half_read_by_a_lost_rank_is_continued_by_another() -> None:
    files = Files([8, 8])
    lost = PlacedStream((1, 2), files, lengths=[8, 8], shuffle=False)
    running = iter(lost.loader(batch_size=None))
    assert [tuple(next(running)) for _ in range(3)] == [(1, 0), (1, 1), (1, 2)]
    for index in range(3):
        lost.record_batch(index, 1)

    heir = PlacedStream((0, 1), files, lengths=[8, 8], shuffle=False)
    heir.load_state_dict(lost.state_dict())
    files.read.clear()
    assert list(heir) == [(0, index) for index in range(3, 8)] + [(1, index) for index in range(3, 8)]
    assert (1, 0) not in files.read, "what was consumed is not even opened"


def test_an_opener_that_cannot_start_in_the_middle_is_read_past_what_was_consumed() -> None:
    opened: list[str] = []

    def open_shard(shard: str) -> list[str]:
        opened.append(shard)
        return [f"{shard}{index}" for index in range(4)]

    stream = ElasticStream(["a", "b"], open_shard, shuffle=False, lengths=[4, 4])
    stream.assign(0)
    stream.record_batch(0, 6)
    assert list(stream) == ["b2", "b3"]
    assert opened == ["b"]


def test_unknown_lengths_are_counted_once_and_travel_with_the_state() -> None:
    files = Files([3, 5])
    stream = PlacedStream((0, 1), files)
    assert stream.state_dict()["lengths"] == "? ?"
    assert len(list(stream)) == 8
    assert set(files.read.values()) == {2}, "read once to count and once to train"
    stream.set_epoch(1)
    list(stream)
    newcomer = PlacedStream((0, 1), files)
    newcomer.load_state_dict(stream.state_dict())
    list(newcomer)
    assert set(files.read.values()) == {4}
    stream.load_state_dict(PlacedStream((0, 1), files).state_dict())  # rolled back to before they were counted
    list(stream)
    assert set(files.read.values()) == {5}


def test_a_count_function_replaces_reading() -> None:
    files = Files([3, 5])
    stream = PlacedStream((0, 1), files, count=lambda shard: files.lengths[int(shard)])
    assert len(list(stream)) == 8
    assert set(files.read.values()) == {1}


def test_the_state_is_text_that_json_can_hold() -> None:
    files = Files([5, 5])
    stream = PlacedStream((0, 1), files, shuffle=False)
    stream.assign(0)
    stream.record_batch(0, 7)
    state = json.loads(json.dumps(stream.state_dict()))
    assert (state["left"], state["lengths"]) == ("1:2-5", "5 5")
    again = PlacedStream((0, 1), files, shuffle=False)
    again.load_state_dict(state)
    assert again.state_dict() == state, "loading changes nothing"
    stream.reset()
    assert stream.state_dict() == state, "nor does a reset"


def test_set_epoch_again_keeps_progress_and_the_next_one_starts_over() -> None:
    files = Files([5, 5])
    stream = PlacedStream((0, 1), files)
    stream.set_epoch(1)
    stream.assign(0)
    stream.record_batch(0, 7)
    stream.set_epoch(1)
    assert len(list(stream)) == 3
    stream.set_epoch(2)
    assert len(list(stream)) == 10


@pytest.mark.parametrize(("given_length", "complaint"), [(4, "more than its 4"), (7, "ended after 5 of 7")])
def test_a_shard_of_an_unexpected_length_is_an_error(given_length: int, complaint: str) -> None:
    files = Files([5])
    with pytest.raises(DataError, match=complaint):
        list(PlacedStream((0, 1), files, lengths=[given_length]))


def test_progress_over_other_shards_is_refused() -> None:
    state = PlacedStream((0, 1), Files([5])).state_dict()
    with pytest.raises(DataError, match="another list of shards"):
        PlacedStream((0, 1), Files([5, 5])).load_state_dict(state)


def test_impossible_settings_are_refused_in_one_line() -> None:
    files = Files([5])
    stream = PlacedStream((0, 1), files)
    for attempt in (
        lambda: stream.record_batch(0, 1),
        lambda: stream.loader(num_workers=1, persistent_workers=True),
        lambda: PlacedStream((0, 1), files, lengths=[1, 2]),
    ):
        with pytest.raises(UsageError) as error:
            attempt()
        assert "\n" not in str(error.value)


def test_the_backlog_is_what_no_rank_has_consumed_also_after_a_resize() -> None:
    stream = ElasticStream(["a", "b"], lambda shard, start: range(start, 50), lengths=[50, 50], shuffle=False)
    assert stream.backlog == 100
    stream.assign(0)
    assert stream.backlog == 100
    stream.record_batch(0, 30)
    assert stream.backlog == 70
    stream.reset()
    assert stream.backlog == 70
    stream.set_epoch(1)
    assert stream.backlog == 100
    assert ElasticStream(["a"], lambda shard, start: range(start, 50)).backlog == 0
