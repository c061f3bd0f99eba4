"""The shares and the order of one epoch: pure, and the same on every rank."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.worker.data.sampler import share, shuffled
from tests.unit.worker.placed_samplers import PlacedSampler

SIZES = st.integers(1, 40)
COUNTS = st.integers(0, 120)


@given(count=COUNTS, size=SIZES, drop_last=st.booleans())
def test_ranks_get_equally_many_and_only_the_last_round_is_padded_or_left_out(
    count: int, size: int, drop_last: bool
) -> None:
    shares = [share(np.arange(count), rank=rank, size=size, drop_last=drop_last).tolist() for rank in range(size)]
    assert len({len(own) for own in shares}) == 1
    times = Counter(index for own in shares for index in own)
    if drop_last:
        assert set(times.values()) <= {1}
        assert 0 <= count - len(times) < size
    else:
        assert set(times) == set(range(count))
        assert max(times.values(), default=1) - min(times.values(), default=1) <= 1
        assert sum(times.values()) - count < max(size, 1)


def test_epochs_are_shuffled_differently_and_alike_on_every_rank() -> None:
    first, again, other = (PlacedSampler((0, 1), 50, seed=1) for _ in range(3))
    other.set_epoch(1)
    assert list(first) == list(again)
    assert list(first) != list(other)
    assert sorted(other) == list(range(50))


def test_the_order_of_an_epoch_never_changes() -> None:
    # Written down once: a resumed job must find the order in which it began.
    assert shuffled(12, seed=7, epoch=3).tolist() == [0, 3, 7, 10, 4, 2, 6, 8, 5, 11, 9, 1]
    assert shuffled(6, seed=-1, epoch=0).tolist() == [4, 1, 2, 5, 0, 3]


def test_the_order_is_that_of_a_known_algorithm_and_not_of_a_library() -> None:
    seed, epoch, count = 123456789012, -1, 1000
    # Python's generator takes the words of one large number, NumPy's a list of words; the last one may not be 0 here.
    twister = random.Random((seed & (1 << 64) - 1) | (epoch & (1 << 64) - 1) << 64)
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        mask = (1 << last.bit_length()) - 1
        while (other := twister.getrandbits(32) & mask) > last:
            pass
        order[last], order[other] = order[other], order[last]
    assert shuffled(count, seed=seed, epoch=epoch).tolist() == order


def test_shuffling_neither_reads_nor_changes_a_global_generator() -> None:
    orders = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        orders.append(list(PlacedSampler((0, 1), 100)))
        assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    assert orders[0] == orders[1]
