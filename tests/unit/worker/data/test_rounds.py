"""The samples of ranks that train alone between two averages: each is averaged once."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.data.rounds import Round, consumed
from tests.unit.worker.placed_samplers import PlacedSampler


class Rank:
    """A sampler whose rank trains alone, and what it has made of it since the last average."""

    def __init__(self, place, count, **options):
        self.sampler = PlacedSampler(place, count, **options)
        self.sampler.round = Round()
        self.sampler.assign()
        self.inner = []
        self.loop = None

    def take(self, batches, batch):
        for _ in range(batches):
            self.loop = iter(self.sampler) if self.loop is None else self.loop
            samples = list(islice(self.loop, batch))
            if not samples:
                return
            self.inner += samples
            self.sampler.record_batch(0, len(samples))


def average(ranks, averaged):
    """All meet: what they have is averaged."""
    keys, taken = [rank.sampler.key for rank in ranks], [rank.sampler.taken for rank in ranks]
    for rank in ranks:
        rank.sampler.averaged(keys, taken)
        averaged.update(rank.inner)
        rank.inner = []


def new_world(ranks):
    """A sync: survivors keep what they have, newcomers load the progress of the first."""
    rows = [rank.sampler.round for rank in ranks]
    for rank, each in zip(ranks, rows, strict=True):
        rank.sampler.place = ranks.index(rank), len(ranks)
        rank.sampler.reset()
        each.fold()
    held = np.concatenate([each.rows() for each in rows])
    for rank in ranks:
        rank.sampler.enter_world(held)
        rank.loop = None


def newcomer(survivor, count, **options):
    rank = Rank((0, 1), count, **options)
    rank.sampler.load_state_dict(survivor.sampler.state_dict())
    return rank


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("train"), st.lists(st.integers(0, 4), min_size=4, max_size=4)),
        st.tuples(st.just("average"), st.none()),
        st.tuples(st.just("lose"), st.integers(0, 3)),
        st.tuples(st.just("join"), st.none()),
    ),
    max_size=25,
)


@given(EVENTS, st.integers(20, 90), st.integers(1, 4), st.booleans())
def test_each_sample_of_an_epoch_is_averaged_once_through_any_losses_and_joins(events, count, size, drop_last):
    options = {"seed": 5, "drop_last": drop_last}
    ranks, averaged = [Rank((rank, size), count, **options) for rank in range(size)], Counter()
    for kind, what in events:
        if kind == "train":
            for rank, batches in zip(ranks, what, strict=False):
                rank.take(batches, 3)
        elif kind == "average":
            average(ranks, averaged)
        elif kind == "lose" and len(ranks) > 1:
            del ranks[what % len(ranks)]  # what it has not averaged is lost with it
            new_world(ranks)
        elif kind == "join" and len(ranks) < 4:
            ranks.append(newcomer(ranks[0], count, **options))
            new_world(ranks)
    for _ in range(2):
        for rank in ranks:
            rank.take(count, 3)
        average(ranks, averaged)
        new_world(ranks)
    twice = {sample: times for sample, times in averaged.items() if times > 1}
    if drop_last:
        assert not twice
        assert count - len(averaged) < len(ranks)
    else:
        assert set(averaged) == set(range(count))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 40))
def test_consumed_samples_are_a_beginning_and_those_of_ranks_ahead(counts, length):
    pool, size = np.arange(100, 100 + length), len(counts)
    first, beyond = consumed(pool, counts)
    wanted = {int(pool[place]) for place in range(length) if place // size < counts[place % size]}
    assert set(pool[:first].tolist()) | set(beyond.tolist()) == wanted
    assert not set(pool[:first].tolist()) & set(beyond.tolist())


def test_what_a_lost_rank_has_not_averaged_returns_and_what_the_others_have_does_not():
    ranks = [Rank((rank, 3), 30, shuffle=False) for rank in range(3)]
    for rank in ranks:
        rank.take(2, 2)
    lost = ranks.pop(1)
    new_world(ranks)
    left = set(ranks[0].sampler).union(ranks[1].sampler)
    assert left >= set(lost.inner) == {1, 4, 7, 10}
    assert not left & {*ranks[0].inner, *ranks[1].inner}
    assert ranks[0].sampler.state_dict() == {"epoch": 0, "processed_num": 0, "batch_size": 2}, "nothing is averaged"


def test_a_sample_that_was_dealt_twice_to_fill_up_a_part_moves_nothing():
    """Found at random: three ranks share 31 samples, and one has the first sample again at the end."""
    ranks, averaged = [Rank((rank, 3), 31, seed=5) for rank in range(3)], Counter()
    for batches in ([1, 2, 3], [2, 4, 3]):
        for rank, count in zip(ranks, batches, strict=True):
            rank.take(count, 3)
        if batches[0] == 1:
            average(ranks, averaged)
    ranks.append(newcomer(ranks[0], 31, seed=5))
    new_world(ranks)
    for rank, count in zip(ranks, [4, 1, 4, 4], strict=True):
        rank.take(count, 3)
    average(ranks, averaged)
    assert set(averaged) == set(range(31))


def test_ranks_that_were_not_equally_far_at_an_average_go_on_with_their_own_part():
    ranks, averaged = [Rank((rank, 2), 40, shuffle=False) for rank in range(2)], Counter()
    ranks[0].take(3, 2)
    ranks[1].take(1, 2)
    average(ranks, averaged)
    assert ranks[0].sampler.state_dict() == ranks[1].sampler.state_dict()
    assert ranks[0].sampler.state_dict()["processed_indices"] == [4, 6, 8, 10]
    ranks[1].take(2, 2)
    average(ranks, averaged)
    assert ranks[0].sampler.state_dict() == {"epoch": 0, "processed_num": 12, "batch_size": 2}
    for rank in ranks:
        rank.take(20, 2)
    average(ranks, averaged)
    assert averaged == Counter(range(40))


def test_a_part_is_used_up_as_soon_as_less_than_a_batch_is_left():
    rank = Rank((0, 2), 20)
    rank.take(4, 2)
    assert not rank.sampler.used_up
    rank.take(1, 2)
    assert rank.sampler.used_up
    average([rank, Rank((1, 2), 20)], Counter())
    assert not rank.sampler.used_up, "that is averaged"


def test_the_next_epoch_is_dealt_anew_whatever_of_the_last_one_was_taken():
    rank = Rank((0, 2), 20, shuffle=False)
    rank.take(10, 2)
    rank.sampler.set_epoch(1)
    assert len(rank.sampler) == 10
    assert list(rank.sampler) == list(range(0, 20, 2))


def test_an_epoch_that_is_used_up_begins_again_without_set_epoch():
    rank = Rank((0, 1), 6, shuffle=False)
    rank.take(9, 2)
    average([rank], Counter())
    with pytest.warns(UserWarning, match="starts again"):
        assert list(rank.sampler) == list(range(6))


def test_global_batches_are_refused_where_ranks_step_alone():
    rank = Rank((0, 1), 6)
    batches = GlobalBatches(rank.sampler, 4)
    loader = type("Loader", (), {"batch_sampler": batches})()
    with pytest.raises(UsageError, match="no step has a global batch"):
        next(batches.steps(loader))
