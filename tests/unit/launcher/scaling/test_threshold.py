"""Signals with marks, by table."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.scaling.observations import Observations, Wish
from hvd_elastic_ext.launcher.scaling.policies import Mark, Threshold


def wish(size: int, *marks: Mark, least: int = 1, most: int = 16, **signals: float) -> Wish:
    return Threshold(marks).wish(0.0, Observations(size, size, signals=signals), least, most)


@pytest.mark.parametrize(
    ("cpu", "size"),
    [(0.8, 4), (0.87, 4), (0.73, 4), (0.9, 5), (1.6, 8), (0.4, 2), (0.01, 1), (100.0, 16)],
)
def test_a_target_gives_the_size_of_kubernetes_own_autoscaler(cpu: float, size: int) -> None:
    assert wish(4, Mark("cpu", 0.8), cpu=cpu).size == size


@pytest.mark.parametrize(("cpu", "size"), [(0.4, 4), (0.79, 4), (0.8, 4), (0.9, 6), (0.2, 2), (0.39, 3)])
def test_between_two_marks_nothing_happens_and_beyond_them_their_middle_is_the_target(cpu: float, size: int) -> None:
    assert wish(4, Mark("cpu", 0.8, low=0.4), cpu=cpu).size == size


def test_a_value_above_the_high_mark_always_wants_one_host_more() -> None:
    assert wish(1, Mark("cpu", 0.8, low=0.79), cpu=0.801).size == 2


def test_a_queue_is_of_all_hosts_and_its_marks_are_of_each() -> None:
    assert wish(4, Mark("queue", 100.0, total=True), queue=1000.0).size == 10
    assert wish(4, Mark("queue", 100.0, total=True), queue=0.0).size == 1


def test_of_several_signals_the_largest_size_wins() -> None:
    marks = Mark("cpu", 0.8), Mark("queue", 100.0, total=True)
    assert wish(4, *marks, cpu=0.4, queue=800.0) == Wish(8, "queue is 200 a host, its target is 100")


def test_while_a_signal_is_unknown_hosts_come_and_none_goes() -> None:
    marks = Mark("cpu", 0.8), Mark("queue", 100.0, total=True)
    assert wish(4, *marks, cpu=1.6).size == 8
    assert wish(4, *marks, cpu=0.2).size == 4
    assert wish(4, *marks) == Wish(4, "no value of cpu, queue yet")
