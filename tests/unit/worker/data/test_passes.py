"""Scripts that never call ``set_epoch``: each loop is a pass over the same epoch, exact like any other."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from tests.unit.worker.histories import HISTORIES, World
from tests.unit.worker.placed_samplers import PlacedSampler, enter

# Machines with few cores are welcome to run these tests.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:ElasticSampler. epoch . is complete"
)

PASSES = 3


def loop(loader: Any, sampler: PlacedSampler, *, batch: int) -> list[int]:
    """The samples of one rank in one loop; each batch is recorded."""
    taken: list[int] = []
    for number, indices in enumerate(loader):
        sampler.record_batch(number, min(batch, len(indices)))
        taken += indices.tolist()
    return taken


def loader_of(sampler: PlacedSampler, count: int, *, batch: int, **options: Any) -> Any:
    return DataLoader(range(count), batch_size=batch, sampler=sampler, **options)


@dataclass
class Saved:
    """A commit: the sampler's progress, the script's count of loops, and the samples consumed in each."""

    progress: dict[str, Any]
    loops: int
    consumed: list[list[int]]


def train(world: World, job: list[PlacedSampler], saved: Saved, *, batch: int) -> Saved:
    """The script's training function in one world: loops until all are done, or until the world ends."""
    loops, consumed, steps = saved.loops, copy.deepcopy(saved.consumed), 0
    while loops < PASSES:
        hands = [list(sampler) for sampler in job]
        assert len({len(hand) for hand in hands}) == 1, "ranks do equally many batches"
        for start in range(0, len(hands[0]), batch):
            if steps == world.batches:  # the world ends in the middle of a step
                return saved if world.end == "loss" else Saved(job[0].state_dict(), loops, consumed)
            for sampler, hand in zip(job, hands, strict=True):
                sampler.record_batch(start // batch, len(hand[start : start + batch]))
                consumed[loops] += hand[start : start + batch]
            steps += 1
            if steps % world.commit_every == 0:
                saved = Saved(job[0].state_dict(), loops, copy.deepcopy(consumed))
        loops += 1
    return Saved(job[0].state_dict(), loops, consumed)


@given(count=st.integers(1, 300), history=HISTORIES, batch=st.integers(1, 64), drop_last=st.booleans())
def test_each_pass_consumes_each_index_once_through_any_losses_and_resizes(
    count: int, history: list[World], batch: int, drop_last: bool
) -> None:
    final = World(size=history[-1].size, batches=PASSES * count + 1, commit_every=1, end="resize")

    def make() -> PlacedSampler:
        return PlacedSampler((0, 1), count, drop_last=drop_last)

    saved, job = Saved(make().state_dict(), 0, [[] for _ in range(PASSES)]), None
    for world in [*history, final]:
        job = enter(world, saved.progress, make, job=job)
        saved = train(world, job, saved, batch=batch)
    largest = max(world.size for world in [*history, final])
    for consumed in saved.consumed:
        times = Counter(consumed)
        if drop_last:
            assert set(times.values()) <= {1}
            assert count - len(times) < largest, "left out is less than one round"
        else:
            assert set(times) == set(range(count))
            assert len(consumed) - count < largest, "padding is less than one round"


def test_the_next_loop_gets_the_same_samples_in_the_same_order() -> None:
    sampler = PlacedSampler((0, 1), 11)
    loader = loader_of(sampler, 11, batch=2, num_workers=2)
    first = loop(loader, sampler, batch=2)
    assert sorted(first) == list(range(11))
    assert loop(loader, sampler, batch=2) == first
    assert loop(loader, sampler, batch=2) == first
    sampler.set_epoch(1)
    assert sorted(loop(loader, sampler, batch=2)) == list(range(11))


def test_progress_is_kept_until_a_new_pass_records_something_as_with_horovods_sampler() -> None:
    sampler = PlacedSampler((0, 1), 8)
    loader = loader_of(sampler, 8, batch=2)
    loop(loader, sampler, batch=2)
    seen = [(sampler.processed_num, len(sampler)) for _ in loader]
    assert seen == [(8, 8)] * 4
    sampler.record_batch(0, 2)
    assert sampler.processed_num == 2


def test_samples_that_a_loader_drops_do_not_keep_the_epoch_open() -> None:
    sampler = PlacedSampler((0, 2), 22)
    loader = loader_of(sampler, 22, batch=4, drop_last=True, num_workers=2)
    first = loop(loader, sampler, batch=4)
    assert len(first) == 8
    assert loop(loader, sampler, batch=4) == first

    later = PlacedSampler((1, 2), 22)  # a newcomer, after the last batch of the second pass
    later.load_state_dict(sampler.state_dict())
    loader = loader_of(later, 22, batch=4, drop_last=True, num_workers=2)
    assert loop(loader, later, batch=4) == [], "the pass was over but for what is left out"
    assert len(loop(loader, later, batch=4)) == 8


def test_a_loop_left_in_the_middle_goes_on_with_what_is_left() -> None:
    sampler = PlacedSampler((0, 1), 10, shuffle=False)
    for number, _ in enumerate(loader_of(sampler, 10, batch=4)):
        sampler.record_batch(number, 4)
        break
    assert loop(loader_of(sampler, 10, batch=4), sampler, batch=4) == [4, 5, 6, 7, 8, 9]


def test_an_epoch_that_ends_at_a_commit_is_over_once_and_then_begins_again() -> None:
    sampler = PlacedSampler((0, 1), 6)
    first = list(sampler)
    sampler.record_batch(0, 6)
    newcomer = PlacedSampler((0, 1), 6)
    for each in (sampler, newcomer):
        each.load_state_dict({"epoch": 0, "processed_num": 6})
        assert list(each) == []
        assert list(each) == first


def test_a_removal_at_the_last_batch_ends_the_loop_entered_again_though_nothing_is_loaded() -> None:
    samplers = [PlacedSampler((rank, 3), 9, shuffle=False) for rank in range(3)]
    for sampler in samplers:
        list(sampler)
        sampler.record_batch(0, 3)
    for rank, sampler in enumerate(samplers[:2]):
        sampler.place = (rank, 2)
        assert list(sampler) == []
        assert list(sampler) == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 0]][rank]


def test_a_commit_before_the_first_batch_is_recorded_is_one_of_the_new_pass() -> None:
    sampler = PlacedSampler((0, 1), 6)
    first = list(sampler)
    sampler.record_batch(0, 6)
    list(sampler)  # the second loop is under way
    newcomer = PlacedSampler((0, 1), 6)
    newcomer.load_state_dict(sampler.state_dict())
    assert list(newcomer) == first


def test_set_epoch_with_the_number_of_the_epoch_consumed_lets_it_be_repeated() -> None:
    sampler = PlacedSampler((0, 1), 6)
    first = list(sampler)
    sampler.record_batch(0, 6)
    sampler.set_epoch(0)  # every loop of the script begins with this
    assert list(sampler) == first


def test_progress_of_an_older_horovod_is_left_out_of_that_pass_only() -> None:
    sampler = PlacedSampler((0, 1), 6)
    sampler.load_state_dict({"epoch": 0, "processed_indices": {1, 3, 5}})
    assert sorted(sampler) == [0, 2, 4]
    sampler.record_batch(0, 3)
    assert sorted(sampler) == list(range(6))


def test_nothing_to_deal_is_not_a_pass() -> None:
    sampler = PlacedSampler((0, 4), 3, drop_last=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(sampler) == list(sampler) == []


def test_of_all_ranks_one_warns_and_only_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for rank in range(2):
            sampler = PlacedSampler((rank, 2), 6)
            for _ in range(3):
                list(sampler)
                sampler.record_batch(0, 3)
    assert [str(each.message) for each in said] == [
        "ElasticSampler: epoch 0 is complete and starts again in the same order; "
        "call set_epoch(1) after the loop for the next epoch"
    ]


@pytest.mark.parametrize(("drop_last", "lengths"), [(False, [4, 4, 3]), (True, [4, 4])])
def test_global_batches_begin_again_too(drop_last: bool, lengths: list[int]) -> None:
    sampler = PlacedSampler((0, 2), 11, drop_last=drop_last)
    batches = GlobalBatches(sampler, total=4)
    loader = DataLoader(range(11), batch_sampler=batches)

    def steps() -> list[tuple[int, list[int]]]:
        return [(step.length, [index for data, _ in step for index in data.tolist()]) for step in batches.steps(loader)]

    first = steps()
    assert [length for length, _ in first] == lengths
    assert steps() == first

    newcomer = PlacedSampler((0, 2), 11, drop_last=drop_last)
    newcomer.load_state_dict(sampler.state_dict())
    batches = GlobalBatches(newcomer, total=4)
    loader = DataLoader(range(11), batch_sampler=batches)
    assert steps() == []
    assert steps() == first
