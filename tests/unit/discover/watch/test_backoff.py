"""How long a server that fails is left alone."""

import pytest

from discover.watch.policy import LONGEST_PAUSE, RESET_AFTER, Backoff


def pauses(count: int, draw) -> list[float]:
    backoff, now, waited = Backoff(), 0.0, []
    for _ in range(count):
        backoff, pause = backoff.failed(now, draw())
        waited.append(pause)
        now += pause
    return waited


def test_pauses_double_from_less_than_a_second_to_half_a_minute():
    assert pauses(8, lambda: 0.0) == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert Backoff().failed(0.0, 0.5)[1] == pytest.approx(1.2)  # at random up to as much is added


def test_after_two_quiet_minutes_a_failure_is_a_first_one():
    backoff = Backoff()
    for _ in range(9):
        backoff, _ = backoff.failed(0.0, 0.0)
    assert backoff.failed(RESET_AFTER, 0.0)[1] == LONGEST_PAUSE
    assert backoff.failed(RESET_AFTER + 1.0, 0.0)[1] == 0.8
