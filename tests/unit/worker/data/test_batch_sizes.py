"""A global batch shared by any number of ranks, in passes of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.data.global_batches import micro_batches, passes

TOTALS = st.integers(1, 200)
SIZES = st.integers(1, 12)
LARGEST = st.none() | st.integers(1, 40)


@given(total=TOTALS, size=SIZES, largest=LARGEST)
def test_the_shares_add_up_and_no_rank_takes_more_than_it_can(total: int, size: int, largest: int | None) -> None:
    count = passes(total, size=size, largest=largest)
    plans = [micro_batches(total, rank=rank, size=size, largest=largest) for rank in range(size)]
    taken = [sum(len(micro.places) for micro in plan if micro.weight) for plan in plans]
    assert sum(taken) == total
    assert max(taken) - min(taken) <= 1
    assert {len(plan) for plan in plans} == {count}
    assert largest is None or (count - 1) * largest < max(taken) <= count * largest


@given(total=TOTALS, size=SIZES, largest=LARGEST)
def test_every_sample_has_the_same_weight_whoever_takes_it(total: int, size: int, largest: int | None) -> None:
    weights = [0.0] * total
    plans = [micro_batches(total, rank=rank, size=size, largest=largest) for rank in range(size)]
    assert len({len(plan) for plan in plans}) == 1, "all ranks make equally many passes"
    for plan in plans:
        for micro in plan:
            assert len(micro.places) >= 1
            assert largest is None or len(micro.places) <= largest
            for place in micro.places:
                weights[place] += micro.weight / len(micro.places) / size
    assert weights == pytest.approx([1 / total] * total)


def test_equal_shares_have_weight_one_over_the_passes() -> None:
    assert passes(512, size=4, largest=64) == 2
    assert {micro.weight for micro in micro_batches(512, rank=1, size=4, largest=64)} == {0.5}
    assert [micro.weight for micro in micro_batches(512, rank=3, size=4)] == [1.0]


def test_more_ranks_than_samples_leaves_some_with_a_sample_of_no_weight() -> None:
    plans = [micro_batches(2, rank=rank, size=3) for rank in range(3)]
    assert [(micro.places, micro.weight) for (micro,) in plans] == [((0,), 1.5), ((1,), 1.5), ((0,), 0.0)]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"total": 0, "size": 1}, "the global batch is 0"),
        ({"total": 8, "size": 0}, "the number of ranks is 0"),
        ({"total": 8, "size": 1, "largest": 0}, "the largest batch is 0"),
    ],
)
def test_impossible_numbers_are_refused_in_one_line(arguments: dict[str, int], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        passes(**arguments)
    with pytest.raises(UsageError, match=complaint):
        micro_batches(rank=0, **arguments)


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 2 is not one of 2"):
        micro_batches(8, rank=2, size=2)
