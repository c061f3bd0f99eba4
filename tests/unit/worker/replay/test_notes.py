"""What is noted of steps, and who takes which part of a lost one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.worker.data.global_batches import GlobalBatches, MicroBatch, micro_batches
from hvd_elastic_ext.worker.data.shares import equal
from hvd_elastic_ext.worker.replay import notes
from hvd_elastic_ext.worker.replay.notes import Deal, Lanes, Run, World
from tests.unit.worker.placed_samplers import PlacedSampler

WORLDS = st.builds(
    World,
    generation=st.integers(1, 5),
    size=st.integers(1, 4),
    rows=st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    source=st.sampled_from(["sampler", "stream"]),
    lanes=st.none() | st.builds(Lanes, st.integers(0, 3), st.just("0:1-5"), st.integers(1, 2), st.booleans()),
    total=st.integers(0, 9),
    largest=st.none() | st.integers(1, 9),
)
RUNS = st.lists(
    st.builds(Run, WORLDS, st.lists(st.floats(0, 1), max_size=3).map(tuple), st.integers(1, 9), st.integers(0, 9)),
    max_size=6,
).map(notes.joined)


@given(RUNS)
def test_what_one_rank_sends_is_what_the_others_read(runs: notes.Runs) -> None:
    assert notes.decode(notes.encode(runs)) == runs


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"worlds":[],"runs":[[0,1]]}', b'{"worlds":[[1]],"runs":[]}'])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        notes.decode(data)


def test_a_thousand_steps_take_a_line_with_one_rate_and_far_less_than_a_megabyte_with_one_for_each() -> None:
    world = World(3, 64, equal(4096, 64))
    same = notes.joined(Run(world, (0.1, 0.01)) for _ in range(1000))
    assert len(same) == 1
    assert len(notes.encode(same)) < 300
    changing = notes.joined(Run(world, (0.1 * 0.999**step, 0.01 * 0.999**step)) for step in range(1000))
    assert notes.count(changing) == 1000
    assert len(notes.encode(changing)) < 100_000


@given(RUNS)
def test_steps_come_one_by_one_in_their_order(runs: notes.Runs) -> None:
    steps = list(notes.each(runs))
    assert len(steps) == notes.count(runs)
    assert notes.joined(steps) == runs
    left = runs
    for step in steps:
        assert next(notes.each(left)) == step
        left = notes.without_first(left)
    assert left == ()


@given(size=st.integers(1, 8), data=st.data())
def test_each_part_of_a_lost_step_has_one_rank_and_survivors_begin_with_their_own(size: int, data: Any) -> None:
    survivors = data.draw(st.permutations(range(size)))[: data.draw(st.integers(0, size))]
    owners = data.draw(st.permutations([*survivors, *[None] * data.draw(st.integers(0 if survivors else 1, 4))]))
    parts = notes.deal(owners, size)
    assert sorted(part for mine in parts for part in mine) == list(range(size))
    for owner, mine in zip(owners, parts, strict=True):
        assert owner is None or mine[0] == owner
    lengths = [len(mine) for mine in parts]
    assert max(lengths) - min(lengths) <= 1


def test_a_newcomer_takes_the_part_of_a_lost_rank_before_survivors_take_two() -> None:
    assert notes.deal([None, 2, 0], 3) == ((1,), (2,), (0,))
    assert notes.deal([3, 1], 5) == ((3, 0, 4), (1, 2))


def test_each_part_of_each_step_has_a_seed_of_its_own() -> None:
    seeds = {notes.seed(7, step=step, rank=rank) for step in range(50) for rank in range(8)}
    assert len(seeds) == 400
    assert notes.seed(7, step=1, rank=1) != notes.seed(8, step=1, rank=1)


class Lost:
    """A recorder with lost steps."""

    def __init__(self, deals: list[Deal]) -> None:
        self.deals = deals

    def lost(self, source: object, most: int) -> list[Deal]:
        return self.deals[:most]


@given(
    total=st.integers(1, 40),
    former=st.integers(1, 6),
    present=st.integers(1, 6),
    largest=st.none() | st.integers(1, 7),
    data=st.data(),
)
def test_the_ranks_of_another_world_take_the_micro_batches_of_a_lost_step_as_they_were(
    total: int, former: int, present: int, largest: int | None, data: Any
) -> None:
    owners = [rank if rank < former and data.draw(st.booleans()) else None for rank in range(present)]
    rows = data.draw(st.none() | st.permutations(equal(total, former)))
    run = Run(World(1, former, None if rows is None else tuple(rows), total=total, largest=largest), ())
    count = 2 * total + 1  # a whole global batch, a whole one, and one with a single sample
    taken: dict[int, list[MicroBatch]] = {}
    dealt = notes.deal(owners, former)
    most = max(map(len, dealt))
    for rank, parts in enumerate(dealt):
        sampler = PlacedSampler((rank, present), count)
        sampler.recorder = Lost([Deal(run, present, parts, most)])
        plan, *rest = GlobalBatches(sampler, total, largest)._plans()
        assert len(plan.starts) == len(parts) + (len(parts) < most)
        assert len(plan.micro_batches) == most * len(
            micro_batches(total, rank=0, size=former, largest=largest, rows=run.world.rows)
        )
        ends = [*plan.starts[1:], len(plan.micro_batches)]
        for part, start, end in zip(parts, plan.starts, ends, strict=False):
            taken[part] = list(plan.micro_batches[start:end])
        padding = plan.micro_batches[plan.starts[-1] :] if len(parts) < most else ()
        assert not any(micro.weight for micro in padding)
        sampler.recorder = None
        assert rest == GlobalBatches(sampler, total, largest)._plans()[1:], "the next one is dealt as usual"
    for rank in range(former):
        as_it_was = micro_batches(total, rank=rank, size=former, largest=largest, rows=run.world.rows)
        assert [micro.places for micro in taken[rank]] == [micro.places for micro in as_it_was]
        # The mean over the present ranks is that over the former ones.
        now = [micro.weight / present for micro in taken[rank]]
        assert now == pytest.approx([micro.weight / former for micro in as_it_was])
