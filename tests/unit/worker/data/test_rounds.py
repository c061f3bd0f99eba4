"""The samples of ranks that train alone between two averages: each is averaged once."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.data.rounds import Round, consumed, stays
from tests.unit.worker.placed_samplers import PlacedSampler


class Rank:
    """A sampler whose rank trains alone, and what it has made of it since the last average."""

    def __init__(self, place, count, **options):
        self.sampler = PlacedSampler(place, count, **options)
        self.sampler.round = Round()
        self.sampler.assign()
        self.inner = []
        self.loop = None
        self.waits = False

    def take(self, batches, batch, *, epochs=1):
        for _ in range(batches):
            if self.waits:
                return
            self.loop = iter(self.sampler) if self.loop is None else self.loop
            samples = list(islice(self.loop, batch))
            if not samples and self.sampler.epoch + 1 == epochs:
                return
            if not samples:
                self.loop = None
                self.sampler.set_epoch(self.sampler.epoch + 1)
                continue
            self.inner += samples if epochs == 1 else [(self.sampler.epoch, sample) for sample in samples]
            self.sampler.record_batch(0, len(samples))
            self.waits = epochs > 1 and self.sampler.used_up


def average(ranks, averaged):
    """All meet: what they have is averaged. Who has used up its part stays until all have."""
    keys, taken = [rank.sampler.key for rank in ranks], [rank.sampler.taken for rank in ranks]
    reached = [rank.sampler.reached for rank in ranks]
    for rank in ranks:
        rank.waits &= stays(rank.sampler.reached, reached)
        rank.sampler.averaged(keys, taken)
        averaged.update(rank.inner)
        rank.inner = []


def new_world(ranks, meet=None):
    """A sync: survivors keep what they have, newcomers load the progress of the first. If need be, they ``meet``."""
    for rank in ranks:
        rank.sampler.place = ranks.index(rank), len(ranks)
    keys, told = [rank.sampler.key for rank in ranks], np.concatenate([rank.sampler.rows() for rank in ranks])
    for rank in ranks:
        rank.sampler.enter_world(told, keys, whole=any(rank.sampler.whole for rank in ranks))
        rank.loop, rank.waits = None, False
    if meet is not None and any(rank.sampler.passes_by for rank in ranks):
        meet()


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
    deals = 3 + sum(kind in ("lose", "join") for kind, _ in events)
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
        assert sum(averaged.values()) - count <= 3 * deals, "only what fills up the last round of a deal comes twice"


ALL = ("train", [2, 2, 2, 2])
MEET = ("average", None)
LOSE = ("lose", 0)


@given(EVENTS, st.integers(20, 60), st.integers(1, 4), st.booleans())
# Defects: a rank with less than a batch left was not waited for; what was averaged of an epoch was not known to those
# that came to it later; a newcomer went on to the next epoch while others held the rest of this one.
@example([ALL, MEET, ("train", [0, 1, 0, 0]), MEET, ("train", [0, 1, 0, 0]), LOSE], 20, 2, False)
@example([ALL, MEET, ("train", [1, 0, 0, 1]), MEET, LOSE], 33, 4, False)
@example([("train", [3]), MEET, ("train", [1]), ("join", None), ("train", [0, 1]), LOSE], 20, 1, False)
@example([ALL, ("join", None), ("train", [0, 0, 1, 1]), MEET, ("train", [0, 1]), LOSE, ("lose", 1)], 20, 3, True)
def test_no_sample_is_lost_when_ranks_go_from_one_epoch_to_the_next_at_their_own_pace(events, count, size, drop_last):
    options = {"seed": 5, "drop_last": drop_last}
    ranks, averaged, apart = [Rank((rank, size), count, **options) for rank in range(size)], Counter(), False

    def commit():
        for rank in ranks:
            rank.commit = rank.sampler.state_dict()

    def meet():
        nonlocal apart
        apart |= len({rank.sampler.key for rank in ranks}) > 1
        average(ranks, averaged)
        commit()

    commit()
    for kind, what in events:
        if kind == "train":
            for rank, batches in zip(ranks, what, strict=False):
                rank.take(2 * batches, 3, epochs=3)
        elif kind == "average" or (kind == "lose" and len(ranks) == 1):
            meet()
        elif kind == "lose":
            del ranks[what % len(ranks)]
            new_world(ranks, meet)
        elif len(ranks) < 4:
            ranks.append(Rank((0, 1), count, **options))
            ranks[-1].commit = ranks[0].commit
            ranks[-1].sampler.load_state_dict(ranks[-1].commit)
            new_world(ranks, meet)
    for _ in range(12):
        for rank in ranks:
            rank.take(count, 3, epochs=3)
        meet()
    assert {rank.sampler.epoch for rank in ranks} == {2}
    of = Counter(epoch for epoch, _ in averaged)
    assert all(of[epoch] > count - 4 if drop_last else of[epoch] == count for epoch in range(3))
    if drop_last and not apart:
        assert set(averaged.values()) == {1}


def test_a_rank_with_less_than_a_batch_left_is_waited_for_if_another_one_has_trained_with_less():
    """Defect: the other one went on, and what was left was trained by nobody when the rank was lost."""
    ranks, averaged = [Rank((rank, 2), 20) for rank in range(2)], Counter()
    for batches in ((3, 3), (0, 1), (0, 1), (1, 1)):
        for rank, each in zip(ranks, batches, strict=True):
            rank.take(each, 3, epochs=2)
        average(ranks, averaged)
    assert averaged == Counter({(0, sample): 1 for sample in range(20)})
    assert not any(rank.waits for rank in ranks)


def test_a_rank_that_waits_with_less_than_a_batch_left_learns_that_others_train_with_that():
    ranks, averaged = [Rank((rank, 2), 20) for rank in range(2)], Counter()
    for batches in ((3, 0), (1, 4), (1, 1)):
        for rank, each in zip(ranks, batches, strict=True):
            rank.take(each, 3, epochs=2)
        average(ranks, averaged)
    assert averaged == Counter({(0, sample): 1 for sample in range(20)})


def test_a_survivor_whose_place_stays_trains_no_epoch_again():
    """A spare takes the lost seat: neither rank nor size has changed."""
    ranks, averaged = [Rank((rank, 2), 12) for rank in range(2)], Counter()
    for rank in ranks:
        rank.take(4, 2)
    average(ranks, averaged)
    progress = ranks[0].sampler.state_dict()
    ranks[1] = Rank((1, 2), 12)
    ranks[1].sampler.load_state_dict(progress)
    new_world(ranks)
    assert [list(rank.sampler) for rank in ranks] == [[], []]


def test_an_epoch_is_dealt_only_to_ranks_that_are_not_beyond_it():
    ranks = [Rank((rank, 3), 24, shuffle=False) for rank in range(3)]
    ranks[0].take(4, 2)
    ranks[0].sampler.set_epoch(1)
    lost = ranks.pop()
    lost.take(1, 2)
    new_world(ranks)
    ahead, behind = ranks
    assert set(behind.sampler) == {*range(24)} - set(ahead.inner), "nobody else will train with these"
    behind.take(20, 2)
    behind.sampler.averaged([ahead.sampler.key, behind.sampler.key], [0, behind.sampler.taken])
    assert behind.sampler.state_dict()["processed_num"] + len(ahead.inner) == 24


def test_a_rank_that_goes_back_alone_keeps_its_part():
    ranks = [Rank((rank, 2), 24, shuffle=False) for rank in range(2)]
    for rank in ranks:
        rank.take(2, 2)
    average(ranks, Counter())
    commit = ranks[0].sampler.state_dict()
    ranks[0].take(3, 2)
    ranks[1].take(1, 2)
    ranks[0].sampler.load_state_dict(commit)
    assert ranks[0].sampler.contributed == 0
    assert list(ranks[0].sampler) == list(range(8, 24, 2))
    average(ranks, Counter())
    assert list(ranks[0].sampler) == list(range(8, 24, 2)), "the other one has its own"
    assert ranks[0].sampler.state_dict()["processed_indices"] == [9, 11]


def test_a_newcomer_knows_how_often_an_epoch_has_begun_again():
    rank = Rank((0, 1), 6, shuffle=False)
    rank.take(3, 2)
    average([rank], Counter())
    rank.loop = None
    with pytest.warns(UserWarning, match="starts again"):
        rank.take(1, 2)
    average([rank], Counter())
    assert newcomer(rank, 6, shuffle=False).sampler.key == rank.sampler.key == (0, 1)


def test_a_rest_that_the_loader_does_not_leave_out_is_trained_with_before_the_average():
    rank, averages = Rank((0, 1), 5), []
    for epoch in range(2):
        rank.sampler.set_epoch(epoch)
        rank.loop = None
        for batch in range(3):
            rank.take(1, 2)
            if rank.sampler.used_up:
                averages.append((epoch, batch))
                average([rank], Counter())
    assert averages == [(0, 1), (0, 2), (1, 2)], "in the first epoch nothing is known yet"


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


def test_a_rank_that_restores_in_a_world_still_knows_what_the_others_told_it_of_the_next_epoch():
    """Defect: its next deal was another one than that of the others, and two samples were trained by nobody."""
    ranks, averaged = [Rank((rank, 3), 24, seed=5) for rank in range(3)], Counter()
    for batches in ((4, 4, 4), (3, 3, 0)):  # all end the first epoch; then the last rank is late
        for rank, each in zip(ranks, batches, strict=True):
            rank.take(each, 2, epochs=3)
        average(ranks, averaged)
        commit = ranks[-1].sampler.state_dict()
    del ranks[1]
    new_world(ranks)
    restored = ranks[-1]
    restored.sampler.load_state_dict(commit)
    restored.loop = None
    for _ in range(14):
        for rank in ranks:
            rank.take(2, 2, epochs=3)
        average(ranks, averaged)
    assert averaged == Counter({(epoch, sample): 1 for epoch in range(3) for sample in range(24)})


def test_an_epoch_that_others_have_trained_whole_is_over_at_once_for_a_rank_that_comes_to_it(recwarn):
    ranks, averaged = [Rank((rank, 2), 8) for rank in range(2)], Counter()
    for rank in ranks:
        rank.take(2, 2, epochs=3)
    average(ranks, averaged)
    for _ in range(6):  # the other one does not train
        ranks[0].take(2, 1, epochs=2)
        average(ranks, averaged)
        new_world(ranks)
    assert {sample for epoch, sample in averaged if epoch == 1} == set(range(8))
    assert list(ranks[1].sampler) == []
    ranks[1].sampler.set_epoch(1)
    assert list(ranks[1].sampler) == []
    assert ranks[1].sampler.key == (1, 0)
    assert not recwarn.list


def test_a_newcomer_at_the_end_of_a_long_epoch_tells_little_to_those_that_are_beyond_it():
    """Defect: it told them each sample of the epoch."""
    ranks, averaged = [Rank((rank, 2), 100_000) for rank in range(2)], Counter()
    for rank in ranks:
        rank.take(1, 50_000, epochs=2)
    average(ranks, averaged)
    ranks.append(newcomer(ranks[0], 100_000))
    for rank in ranks[:2]:
        rank.take(1, 100, epochs=2)
        rank.take(1, 100, epochs=2)
    assert [(rank.sampler.epoch, len(rank.sampler.rows())) for rank in ranks] == [(1, 101), (1, 101), (0, 1)]
    new_world(ranks)
    assert ranks[2].sampler.state_dict()["processed_num"] == 100_000
