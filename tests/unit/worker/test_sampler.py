"""Dealing samples: everybody gets equally many, nobody is left out, for every world and data set size."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from horovod.torch.elastic.sampler import ElasticSampler as StockSampler
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_elastic_ext.worker.sampler import ElasticSampler, share

SIZES = st.integers(1, 40)
COUNTS = st.integers(0, 120)


def deal(count: int, size: int, *, drop_last: bool) -> list[list[int]]:
    return [share(range(count), rank=rank, size=size, drop_last=drop_last) for rank in range(size)]


@settings(deadline=None)
@given(count=COUNTS, size=SIZES)
def test_every_rank_gets_equally_many_and_every_sample_is_dealt(count: int, size: int) -> None:
    hands = deal(count, size, drop_last=False)
    assert len({len(hand) for hand in hands}) == 1
    dealt = Counter(index for hand in hands for index in hand)
    assert set(dealt) == set(range(count))
    if count:
        assert max(dealt.values()) - min(dealt.values()) <= 1
        assert sum(dealt.values()) - count < size


@settings(deadline=None)
@given(count=COUNTS, size=SIZES)
def test_with_drop_last_nothing_is_dealt_twice_and_less_than_one_round_is_left(count: int, size: int) -> None:
    hands = deal(count, size, drop_last=True)
    assert len({len(hand) for hand in hands}) == 1
    dealt = Counter(index for hand in hands for index in hand)
    assert set(dealt.values()) <= {1}
    assert 0 <= count - len(dealt) < size


class Placed(ElasticSampler):
    """A sampler that is told its place, so that worlds of any size need no processes."""

    def __init__(self, place: tuple[int, int], count: int, **options: Any) -> None:
        self.place = place
        super().__init__(range(count), **options)

    def world(self) -> tuple[int, int]:
        return self.place


def move(samplers: list[Placed], size: int) -> list[Placed]:
    """Bring the samplers' progress to a world of another size, as a sync does."""
    progress = samplers[0].state_dict()
    moved = [Placed((rank, size), len(samplers[0].dataset), seed=samplers[0].seed) for rank in range(size)]
    for sampler in moved:
        sampler.load_state_dict(progress)
    return moved


@settings(deadline=None)
@given(
    count=st.integers(1, 80),
    worlds=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=6),
    batch=st.integers(1, 5),
)
def test_every_sample_of_an_epoch_is_consumed_through_any_resizes(
    count: int, worlds: list[tuple[int, int]], batch: int
) -> None:
    consumed: Counter[int] = Counter()
    samplers = [Placed((0, 1), count, seed=3)]
    for size, batches in [*worlds, (worlds[-1][0], count)]:  # the last world goes on to the end
        samplers = move(samplers, size)
        hands = [list(sampler) for sampler in samplers]
        assert {len(hand) for hand in hands} == {len(samplers[0])}
        for start in range(0, min(len(hands[0]), batches * batch), batch):
            for sampler, hand in zip(samplers, hands, strict=True):
                taken = hand[start : start + batch]
                consumed.update(taken)
                sampler.record_batch(start // batch, len(taken))
    assert set(consumed) == set(range(count))
    assert sum(consumed.values()) - count < max(size for size, _ in worlds), "padding is less than one round"


def test_the_end_of_an_epoch_with_fewer_samples_than_ranks_is_no_error() -> None:
    samplers = [Placed((rank, 8), 11, shuffle=False) for rank in range(8)]
    for sampler in samplers:
        sampler.record_batch(0, 1)
        sampler.reset()
    assert [list(sampler) for sampler in samplers] == [[8], [9], [10], [8], [9], [10], [8], [9]]


def test_the_stock_sampler_ends_the_job_there() -> None:
    class Stock(StockSampler):  # type: ignore[misc]
        def reset(self) -> None:
            self.rank, self.num_replicas = 0, 8
            self.remaining_indices, self.num_samples, self.total_size = [8, 9, 10], 1, 8

    with pytest.raises(AssertionError):
        list(Stock(range(11)))


def test_an_exhausted_epoch_deals_nothing() -> None:
    sampler = Placed((1, 3), 4)
    sampler.load_state_dict({"epoch": 0, "processed_num": 7})
    assert list(sampler) == []
    assert len(sampler) == 0


def test_drop_last_leaves_the_remainder_out() -> None:
    sampler = Placed((0, 4), 11, shuffle=False, drop_last=True)
    assert list(sampler) == [0, 4]
    assert len(sampler) == 2


def test_epochs_are_shuffled_differently_and_alike_on_every_rank() -> None:
    first, again, other = Placed((0, 1), 50, seed=1), Placed((0, 1), 50, seed=1), Placed((0, 1), 50, seed=1)
    other.set_epoch(1)
    assert list(first) == list(again)
    assert list(first) != list(other)
    assert sorted(other) == list(range(50))


def test_the_state_has_the_keys_of_the_stock_sampler() -> None:
    assert set(Placed((0, 1), 5).state_dict()) == {"epoch", "processed_num"}
