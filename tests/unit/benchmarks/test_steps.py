"""Facts from stamped steps."""

from __future__ import annotations

import pytest

from benchmarks import steps
from benchmarks.steps import Stamp


def stamp(mono: float, *, pid: int = 1, rank: int = 0, size: int = 1) -> Stamp:
    return Stamp(mono, pid, rank, size, step=0, host="localhost")


def test_a_line_is_read_as_the_trainee_writes_it() -> None:
    assert steps.parse("12.5 4711 1 2 33 127.0.0.1\n") == Stamp(12.5, 4711, 1, 2, 33, "127.0.0.1")


@pytest.mark.parametrize("line", ["", "12.5 4711 1 2 33 local", "12.5 4711\n"])
def test_a_line_that_is_not_whole_yet_is_none(line: str) -> None:
    assert steps.parse(line) is None


def test_the_first_step_at_a_size_is_the_earliest_after_the_moment_whoever_wrote_first() -> None:
    found = [stamp(1.0, size=2), stamp(9.0, size=2), stamp(8.0, size=2, pid=2), stamp(7.0, size=3)]
    assert steps.first_at(found, size=2, after=5.0) == found[2]
    assert steps.first_at(found, size=1, after=0.0) is None


def test_members_are_the_ranks_of_the_newest_world_only() -> None:
    found = [stamp(1.0, pid=9, rank=2, size=3), stamp(2.0, pid=1, rank=0, size=2), stamp(2.1, pid=2, rank=1, size=2)]
    assert {rank: member.pid for rank, member in steps.members(found).items()} == {0: 1, 1: 2}
    assert steps.members([]) == {}


def test_a_world_is_settled_once_every_rank_has_stepped_long_enough() -> None:
    two = [stamp(float(n), pid=n % 2, rank=n % 2, size=2) for n in range(20)]
    assert steps.settled(two, size=2, steps=10)
    assert not steps.settled(two[:8], size=2, steps=10)
    assert not steps.settled(two, size=1, steps=10)
    assert not steps.settled([s for s in two if s.rank == 0] * 2, size=2, steps=10)


def test_a_stall_is_the_longest_step_after_the_change_less_the_median_before() -> None:
    survivor = [stamp(n / 10) for n in range(11)] + [stamp(1.1), stamp(4.2), stamp(4.3)]
    newcomer = [stamp(100.0, pid=2)]
    assert steps.stall([*survivor, *newcomer], pid=1, changed=1.05) == pytest.approx(3.0)


def test_a_stall_that_began_before_the_change_counts_whole() -> None:
    assert steps.stall([stamp(0.0), stamp(0.1), stamp(0.2), stamp(2.3)], pid=1, changed=0.25) == pytest.approx(2.0)


def test_a_stall_cannot_be_told_without_steps_on_both_sides_of_the_change() -> None:
    with pytest.raises(ValueError, match="2 steps before the change and 0 after"):
        steps.stall([stamp(0.0), stamp(0.1), stamp(0.2)], pid=1, changed=0.3)
