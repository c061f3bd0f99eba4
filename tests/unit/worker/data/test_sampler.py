"""The sampler: each index exactly once per epoch, through any losses and resizes."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import current_world as worlds
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.data.sampler import ElasticSampler, share
from tests.unit.worker.histories import HISTORIES, Committed, World
from tests.unit.worker.placed_samplers import PlacedSampler, enter

# Machines with few cores are welcome to run these tests.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def batches(samplers: list[PlacedSampler], size: int) -> Iterator[list[int]]:
    """The samples of all ranks in each step, once every rank has recorded it."""
    hands = [list(sampler) for sampler in samplers]
    assert {len(hand) for hand in hands} == {len(sampler) for sampler in samplers}, "ranks do equally many batches"
    for start in range(0, len(hands[0]), size):
        taken = [hand[start : start + size] for hand in hands]
        for sampler, part in zip(samplers, taken, strict=True):
            sampler.record_batch(start // size, len(part))
        yield [index for part in taken for index in part]


def live_through(world: World, samplers: list[PlacedSampler], last: Committed, *, batch: int) -> Committed:
    """Run one world to its end; return what the job continues from."""
    consumed = list(last.consumed)
    for number, taken in enumerate(batches(samplers, batch)):
        if number == world.batches:
            # This batch was under way when the world ended: recorded by nobody who lives on.
            for sampler in samplers:
                sampler.processed_num -= len(taken)
            break
        consumed += taken
        if (number + 1) % world.commit_every == 0:
            last = Committed(samplers[0].state_dict(), list(consumed))
    return last if world.end == "loss" else Committed(samplers[0].state_dict(), consumed)


@given(
    count=st.integers(1, 2000),
    history=HISTORIES,
    batch=st.integers(1, 64),
    drop_last=st.booleans(),
    seed=st.integers(-(2**40), 2**40),
    set_epoch_first=st.booleans(),
)
def test_each_index_is_consumed_once_an_epoch_through_any_losses_and_resizes(
    count: int, history: list[World], batch: int, drop_last: bool, seed: int, set_epoch_first: bool
) -> None:
    options = {"seed": seed, "drop_last": drop_last}
    final = World(size=history[-1].size, batches=count + 1, commit_every=1, end="resize")

    def make() -> PlacedSampler:
        return PlacedSampler((0, 1), count, **options)

    state, job = Committed(make().state_dict(), []), None
    for epoch in range(2):
        for world in [*history, final]:
            job = enter(world, state.progress, make, job=job)
            if set_epoch_first:
                for sampler in job:
                    sampler.set_epoch(epoch)
            state = live_through(world, job, state, batch=batch)

        times = Counter(state.consumed)
        extra = sum(times.values()) - len(times)
        if drop_last:
            assert extra == 0
            assert count - len(times) < final.size, "left out is less than one round of the epoch's last world"
        else:
            assert set(times) == set(range(count))
            assert extra < max(world.size for world in [*history, final]), "padding is less than one round"
        job = enter(final, state.progress, make, job=job)
        assert [len(sampler) for sampler in job] == [0] * final.size, "everybody sees the end alike"
        for sampler in job:
            sampler.set_epoch(epoch + 1)
        state = Committed(job[0].state_dict(), [])


def test_an_epoch_that_ends_at_a_commit_is_over_for_every_rank_that_returns_to_it() -> None:
    before = World(size=2, batches=99, commit_every=4, end="loss")

    def make() -> PlacedSampler:
        return PlacedSampler((0, 1), 16)

    start = Committed(make().state_dict(), [])
    state = live_through(before, enter(before, start.progress, make), start, batch=2)
    assert sorted(state.consumed) == list(range(16))
    for size in (1, 2, 5):
        for sampler in enter(World(size, 1, 1, "loss"), state.progress, make):
            assert len(sampler) == 0
            assert list(sampler) == []
        for sampler in enter(World(size, 1, 1, "loss"), state.progress, make):
            assert list(DataLoader(range(16), batch_size=4, sampler=sampler)) == []


def test_the_end_of_an_epoch_with_fewer_samples_than_ranks_is_not_an_error() -> None:
    samplers = [PlacedSampler((rank, 8), 11, shuffle=False) for rank in range(8)]
    for sampler in samplers:
        sampler.record_batch(0, 1)
        sampler.reset()
    assert [list(sampler) for sampler in samplers] == [[8], [9], [10], [8], [9], [10], [8], [9]]


def test_a_last_batch_may_be_recorded_with_the_full_size() -> None:
    sampler = PlacedSampler((0, 2), 10)
    for index in range(3):
        sampler.record_batch(index, 2)  # the last one held 1
    sampler.reset()
    assert (len(sampler), list(sampler.remaining_indices)) == (0, [])


def test_drop_last_leaves_the_remainder_out() -> None:
    sampler = PlacedSampler((0, 4), 11, shuffle=False, drop_last=True)
    hand = list(sampler)
    assert hand == [0, 4]
    assert {type(index) for index in hand} == {int}  # datasets index lists and dictionaries with them
    assert len(sampler) == 2


def test_a_smaller_world_assigns_what_drop_last_left_out_in_a_larger_one() -> None:
    sampler = PlacedSampler((0, 4), 11, shuffle=False, drop_last=True)
    sampler.record_batch(0, 2)
    sampler.place = (0, 1)
    assert list(sampler) == [8, 9, 10]


def kept(place: tuple[int, int] = (0, 2), count: int = 12) -> PlacedSampler:
    """A sampler of a State."""
    sampler = PlacedSampler(place, count, shuffle=False)
    sampler.state_dict()
    return sampler


ADD = re.escape("add: sampler.record_batch(batch_idx, batch_size)")


def test_an_epoch_that_ends_with_nothing_recorded_warns_once_with_the_line_to_add() -> None:
    sampler = kept()
    list(sampler)
    with pytest.warns(UserWarning, match=f"nothing of epoch 0 was recorded, .*{ADD}") as told:
        sampler.set_epoch(1)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(sampler)
        sampler.set_epoch(2)


def test_without_set_epoch_the_next_pass_warns_that_nothing_was_recorded() -> None:
    sampler = kept()
    list(DataLoader(range(12), batch_size=2, sampler=sampler))
    with pytest.warns(UserWarning, match=ADD):
        next(iter(sampler))


def test_after_a_resize_an_epoch_with_nothing_recorded_warns_too() -> None:
    sampler = kept()
    shown = iter(sampler)
    next(shown)
    sampler.place = (0, 1)
    sampler.reset()
    list(sampler)
    with pytest.warns(UserWarning, match=ADD):
        sampler.set_epoch(1)


def _recorded(sampler: PlacedSampler) -> None:
    for _ in sampler:
        sampler.record_batch(0, 1)


def _recorded_by_an_older_horovod(sampler: PlacedSampler) -> None:
    sampler.processed_indices.update(sampler)


def _broken_off(sampler: PlacedSampler) -> None:
    next(iter(sampler))


def _resized_before_its_first_batch_is_recorded(sampler: PlacedSampler) -> None:
    list(sampler)  # a loader has fetched all of it ahead
    sampler.place = (0, 1)
    sampler.reset()


def _of_global_batches(sampler: PlacedSampler) -> None:
    for batch in GlobalBatches(sampler, 4):
        assert batch is not None


@pytest.mark.parametrize(
    "epoch",
    [
        *(_recorded, _recorded_by_an_older_horovod, _broken_off, _resized_before_its_first_batch_is_recorded),
        _of_global_batches,
    ],
)
def test_no_other_epoch_warns_that_nothing_was_recorded(
    epoch: Callable[[PlacedSampler], None], recwarn: pytest.WarningsRecorder
) -> None:
    sampler = kept()
    epoch(sampler)
    next(iter(sampler), None)
    sampler.set_epoch(1)
    assert not [each for each in recwarn if "was recorded" in str(each.message)]


def test_other_ranks_and_samplers_that_are_in_no_state_do_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    for sampler in (kept((1, 2)), PlacedSampler((0, 2), 12)):
        list(sampler)
        sampler.set_epoch(1)
        list(sampler)
        next(iter(sampler))
    assert not list(recwarn)


def test_a_second_iteration_continues_from_the_record() -> None:
    sampler = PlacedSampler((1, 2), 10, shuffle=False)
    assert list(sampler) == [1, 3, 5, 7, 9]
    sampler.record_batch(0, 2)
    assert len(sampler) == 5, "the length is that of the deal under way"
    assert list(sampler) == [5, 7, 9]


def test_the_next_iteration_notices_a_resize() -> None:
    sampler = PlacedSampler((0, 2), 12, shuffle=False)
    sampler.record_batch(0, 1)
    sampler.place = (2, 3)
    assert len(sampler) == 4
    assert list(sampler) == [4, 7, 10, 3]


def test_a_graceful_removal_neither_misses_nor_repeats_samples() -> None:
    """Three ranks take four batches of ten; one leaves without a sync, and the others finish."""
    samplers = [PlacedSampler((rank, 3), 480) for rank in range(3)]
    consumed: Counter[int] = Counter()
    for steps in (4, 99):
        hands = [list(sampler) for sampler in samplers]
        for start in range(0, min(10 * steps, len(hands[0])), 10):
            for sampler, hand in zip(samplers, hands, strict=True):
                consumed.update(hand[start : start + 10])
                sampler.record_batch(start // 10, len(hand[start : start + 10]))
        samplers = samplers[:2]
        for rank, sampler in enumerate(samplers):
            sampler.place = (rank, 2)
    assert consumed == Counter(range(480))


def test_set_epoch_before_the_loop_keeps_the_progress_of_an_epoch_entered_again() -> None:
    sampler = PlacedSampler((0, 1), 10)
    sampler.set_epoch(1)
    sampler.record_batch(0, 4)
    fresh = PlacedSampler((0, 2), 10)
    fresh.load_state_dict(sampler.state_dict())  # a resize; the training function starts again
    fresh.set_epoch(1)
    assert (fresh.processed_num, len(fresh)) == (4, 3)
    fresh.set_epoch(2)
    assert (fresh.processed_num, len(fresh)) == (0, 5)


def test_progress_before_the_first_batch_is_what_horovods_own_sampler_saves() -> None:
    assert PlacedSampler((0, 1), 5).state_dict() == {"epoch": 0, "processed_num": 0}


def test_progress_that_an_older_horovod_recorded_is_taken_over() -> None:
    sampler = PlacedSampler((0, 2), 10)
    sampler.load_state_dict({"epoch": 4, "processed_indices": {1, 3, 5}})
    assert len(sampler) == 4
    assert sorted(sampler.remaining_indices) == [0, 2, 4, 6, 7, 8, 9]

    sampler.record_batch(0, 2)
    later = PlacedSampler((0, 1), 10)
    later.load_state_dict(sampler.state_dict())  # commits and syncs keep it to the end of the epoch
    assert len(later) == 3
    assert not set(later) & {1, 3, 5}
    later.set_epoch(5)
    assert len(later) == 10
    assert set(later.state_dict()) == {"epoch", "processed_num"}


def test_a_sampler_may_be_made_before_there_is_a_world() -> None:
    assert worlds.comms() is None
    sampler = ElasticSampler(range(10), shuffle=False)
    assert len(sampler) == 10

    class ThirdOfFive:
        def rank(self) -> int:
            return 2

        def size(self) -> int:
            return 5

    worlds.use(ThirdOfFive())
    try:
        assert len(sampler) == 2
        assert list(sampler) == [2, 7]
    finally:
        worlds.use(None)


def test_what_loader_processes_fetched_ahead_is_not_consumed() -> None:
    sampler = PlacedSampler((0, 2), 48)
    loader = DataLoader(
        range(48),
        batch_size=2,
        sampler=sampler,
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,  # indices are sent from here, so one loader may serve all worlds
    )
    consumed: list[int] = []
    running = iter(loader)
    for _ in range(3):
        consumed += next(running).tolist()
        sampler.record_batch(0, 2)
    commit = sampler.state_dict()
    next(running)
    sampler.record_batch(0, 2)

    sampler.load_state_dict(commit)  # a roll-back: the fourth batch and the sixteen fetched ahead come again
    assert consumed == share(sampler.order(), rank=0, size=2, drop_last=False).tolist()[:6]
    left = [index for batch in loader for index in batch.tolist()]
    assert left == share(sampler.order()[12:], rank=0, size=2, drop_last=False).tolist()

    sampler.place = (1, 3)  # a resize, with the same loader
    left = [index for batch in loader for index in batch.tolist()]
    assert left == share(sampler.order()[12:], rank=1, size=3, drop_last=False).tolist()
    del running, loader


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "a value of type int, which has no length; give a dataset"),
        (5, "range(5) has 5 samples"),
        (Dataset, "the class Dataset; give a dataset made of it"),
        (iter([1, 2]), "elastic.ElasticStream takes data that can only be read in order"),
    ],
)
def test_what_has_no_length_is_refused_in_one_line(given: object, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        ElasticSampler(given)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"seed": "x"}, "seed is 'x'; give a whole number, the same on every rank"),
        ({"seed": 1.5}, "seed is 1.5; give a whole number, the same on every rank"),
        ({"seed": None}, "seed is a value of type NoneType; give a whole number, the same on every rank"),
        ({"shuffle": "no"}, "shuffle is 'no'; give True or False"),
        ({"shuffle": 42}, "shuffle is 42; give True or False"),
        ({"drop_last": []}, "drop_last is a value of type list; give True or False"),
        ({"shufle": True}, "shufle is not an option; did you mean shuffle?"),
        ({"Drop_Last": True}, "Drop_Last is not an option; did you mean drop_last?"),
        ({"workers": 2}, "workers is not an option; there are seed, shuffle, drop_last"),
    ],
)
def test_an_argument_of_another_name_or_type_is_refused_when_the_sampler_is_made(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=f"^ElasticSampler: {re.escape(why)}$"):
        ElasticSampler(range(4), **options)


def test_whatever_counts_as_a_whole_number_or_a_switch_is_taken() -> None:
    made = ElasticSampler(range(4), shuffle=np.bool_(True), seed=np.int64(3), drop_last=0)
    assert sorted(made) == [0, 1, 2, 3]
    assert list(made) == list(ElasticSampler(range(4), seed=torch.tensor(3)))
