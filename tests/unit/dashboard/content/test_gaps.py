"""Where a line over time is broken."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.dashboard.content.gaps import broken, gaps, trained
from hvd_elastic_ext.report.series import Loss
from hvd_elastic_ext.report.timeline import timeline
from tests.support.journals import JournalMaker


def found(journal: JournalMaker) -> list[tuple[float, float]]:
    return [(round(begin, 3), round(end, 3)) for begin, end in gaps(timeline(journal.records))]


def test_a_sleep_and_a_change_of_the_world_that_takes_long_are_gaps() -> None:
    journal = JournalMaker().add("started").resized("start", 2).steps(10, every=1)
    journal.add("slept", after=1, reason="no hosts").resized("start", 2, after=60).steps(10, every=1)
    assert found(journal) == [(10.0, 72.0)]
    journal.resized("hosts added", 3, after=4).steps(10, every=1)
    assert found(journal) == [(10.0, 72.0), (81.0, 86.0)]


def test_a_change_of_the_world_within_a_step_or_two_is_none() -> None:
    journal = JournalMaker().resized("start", 2).steps(10, every=1).resized("hosts added", 3, after=0.5)
    assert found(journal.steps(10, every=1)) == []


def test_a_job_that_stood_still_is_a_gap_and_slow_steps_are_none() -> None:
    journal = JournalMaker().resized("start", 2).steps(10, every=1).steps(1, every=30).steps(5, every=1)
    assert found(journal) == [(10.0, 40.0)]
    assert found(JournalMaker().resized("start", 2).steps(10, every=1).steps(3, every=8)) == []


def test_a_job_that_becomes_faster_had_no_gaps_before() -> None:
    assert found(JournalMaker().resized("start", 2).steps(20, every=1).steps(100, every=0.01)) == []


def test_steps_that_a_new_launcher_tells_late_are_no_gap_and_a_job_that_starts_again_is() -> None:
    journal = JournalMaker().resized("start", 2).steps(10, every=1).add("started", after=8).steps(8, every=0)
    assert found(journal.steps(5, every=1)) == []
    journal.add("started", after=20).resized("start", 2, after=10)
    assert found(journal.steps(5, every=1)) == [(23.0, 54.0)]


def test_steps_that_are_left_out_are_no_gap() -> None:
    journal = JournalMaker().resized("start", 2).steps(5, every=1)
    journal.step += 99
    assert found(journal.steps(1, every=100).steps(5, every=1)) == []


def test_steps_all_at_one_moment_and_none_at_all_give_no_error() -> None:
    assert found(JournalMaker().resized("start", 2).steps(5, every=0)) == []
    assert found(JournalMaker().resized("start", 2).steps(1).add("slept", after=5).steps(1)) == [(0.1, 5.2)]
    assert found(JournalMaker()) == []


def test_a_line_is_broken_between_two_points_and_not_before_or_after_all() -> None:
    points = [Loss(at, None, at) for at in (10.0, 20.0, 30.0)]
    assert broken(points, [(1.0, 5.0), (20.0, 30.0), (31.0, 40.0)]) == [
        (10.0, 10.0), (20.0, 20.0), (25.0, None), (30.0, 30.0),
    ]  # fmt: skip
    assert broken([], [(1.0, 2.0)]) == []


def test_of_a_bin_the_part_with_steps_is_left() -> None:
    bins = [(0.0, 10.0, 1.0), (10.0, 10.0, 0.5), (20.0, 10.0, 0.0), (30.0, 10.0, 2.0)]
    assert trained(bins, [(2.0, 3.0), (8.0, 12.0), (18.0, 30.0), (40.0, 50.0)]) == [
        [0.0, 2.0, pytest.approx(10 / 7)], [3.0, 5.0, pytest.approx(10 / 7)], [12.0, 6.0, pytest.approx(5 / 6)],
        [30.0, 10.0, 2.0],
    ]  # fmt: skip
    assert trained(bins[:1], []) == [[0.0, 10.0, 1.0]]


def test_a_pause_makes_the_steps_beside_it_neither_slower_nor_faster() -> None:
    bins = [(0.0, 10.0, 4.0), (10.0, 10.0, 0.8), (20.0, 10.0, 0.3), (30.0, 10.0, 5.0)]
    assert trained(bins, [(12.0, 29.9)]) == [[0.0, 10.0, 4.0], [10.0, 2.0, 4.0], [29.9, pytest.approx(0.1), 5.0],
                                             [30.0, 10.0, 5.0]]  # fmt: skip
