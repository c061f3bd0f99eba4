"""How much the write of a checkpoint slows down training."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.checkpoints.interval import SlowdownMeter, StepAt, slowed


@pytest.mark.parametrize(
    ("before", "meanwhile", "expected"),
    [
        ((100.0, 100), (10.0, 10), 0.0),
        ((100.0, 100), (11.0, 10), 0.1),
        ((100.0, 100), (8.0, 10), 0.0),
        ((100.0, 100), (90.0, 10), 1.0),
        ((100.0, 100), (4.9, 10), None),
        ((4.9, 100), (10.0, 10), None),
        ((100.0, 100), (10.0, 4), None),
        ((100.0, 0), (10.0, 10), None),
    ],
)
def test_steps_are_compared_over_times_that_are_long_enough(
    before: tuple[float, int], meanwhile: tuple[float, int], expected: float | None
) -> None:
    since, begun = StepAt(0.0, 7), StepAt(before[0], 7 + before[1])
    end = StepAt(begun.at + meanwhile[0], begun.step + meanwhile[1])
    found = slowed((since, begun), (begun, end))
    assert found == (None if expected is None else pytest.approx(expected))


def test_each_is_compared_with_the_time_since_the_one_before() -> None:
    slowing = SlowdownMeter()
    for now in (0.0, 50.0):
        slowing.trains(now, int(now))
    slowing.begins(100.0, 100)
    assert slowing.ends(112.0, 110) == pytest.approx(0.2)
    slowing.trains(113.0, 111)
    slowing.begins(212.0, 160)  # steps take 2 s now
    assert slowing.ends(234.0, 170) == pytest.approx(0.1)


def test_what_was_broken_off_is_no_measure() -> None:
    slowing = SlowdownMeter()
    slowing.trains(0.0, 0)
    slowing.begins(100.0, 100)
    slowing.breaks()
    slowing.begins(200.0, 150)
    assert slowing.ends(212.0, 160) is None
