"""What the benchmark of predictions reads from the steps of a peer."""

from __future__ import annotations

import pytest

from benchmarks.cases.state.simulated_spot_trace import Length, lengths, times_in_place, times_of
from benchmarks.steps import Stamp
from hvd_elastic_ext.simulate.traces.rows import Row, Trace, checked


def steps(*spans: tuple[float, float, int]) -> list[Stamp]:
    """Of rank 0, one in 0.1 s: from when, until when, and the size of its world, which has a process of its own."""
    return [
        Stamp(mono=begin + 0.1 * number, pid=at, rank=0, size=size, step=1 + number, host="a")
        for at, (begin, end, size) in enumerate(spans)
        for number in range(round((end - begin) / 0.1))
    ]


def trace(*rows: Row) -> Trace:
    return checked([Row(0.0, "a", "up"), Row(0.0, "b", "up"), *rows], where="t", ends=100.0)


def test_what_was_cut_short_makes_long_ones_more_probable() -> None:
    assert lengths([1.0, 2.0], []) == [Length(1.0, 0.5), Length(2.0, 0.5)]
    assert lengths([1.0, 3.0], [2.0]) == [Length(1.0, pytest.approx(1 / 3)), Length(3.0, pytest.approx(2 / 3))]
    assert lengths([1.0], [2.0]) == [Length(1.0, 0.5), Length(2.0, 0.5)]
    assert lengths([], []) == []


def test_a_start_that_another_event_cut_short_is_not_one_start_of_all_that_time() -> None:
    lost, more = Row(10.0, "b", "down"), Row(14.0, "c", "up")
    times, starts = times_of(steps((0.0, 10.0, 2), (20.0, 30.0, 2)), trace(lost, more), 0.0)
    assert [each.seconds for each in starts] == [pytest.approx(6.0)]
    assert times.boot_s == times.join_s == 0.0


def test_time_that_a_peer_stood_still_before_newcomers_came_is_part_of_a_change() -> None:
    lost, more = Row(10.0, "b", "down"), Row(18.0, "c", "up")
    times = times_in_place(steps((0.0, 10.0, 2), (20.0, 30.0, 2)), trace(lost, more), 0.0)
    assert times.join_s == pytest.approx(8.0, abs=0.2)
    assert times.boot_s == pytest.approx(2.0)
