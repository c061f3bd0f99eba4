"""Who is blocked, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.launcher.health import HostRecord, cooldown_s, exit_cause

LIMITS = (10.0, 100.0)


def test_the_first_cooldown_is_the_lower_limit_and_each_next_one_doubles_up_to_the_upper() -> None:
    assert [cooldown_s(n, LIMITS) for n in range(1, 7)] == [10, 20, 40, 80, 100, 100]


@given(st.integers(1, 10_000), st.floats(1, 3600), st.floats(0, 3600))
def test_a_cooldown_stays_within_its_limits_however_often_a_host_failed(failures: int, low: float, more: float) -> None:
    assert low <= cooldown_s(failures, (low, low + more)) <= low + more


def test_a_cooldown_without_a_failure_is_an_error() -> None:
    with pytest.raises(ValueError, match="follows a failure"):
        cooldown_s(0, LIMITS)


def test_a_host_is_blocked_for_its_cooldown_and_not_longer() -> None:
    record = HostRecord().struck(5.0, LIMITS)
    assert record.blocked(5.0)
    assert record.blocked(14.99)
    assert not record.blocked(15.0)
    assert record.cooled_down(15.0)
    assert not record.cooled_down(14.99)


def test_several_processes_failing_together_are_one_failure_of_their_host() -> None:
    once = HostRecord().struck(5.0, LIMITS)
    assert once.struck(5.1, LIMITS) == once


def test_a_readmitted_host_remembers_its_failures() -> None:
    record = HostRecord().struck(0.0, LIMITS).readmitted()
    assert not record.cooled_down(1000.0)
    assert record.struck(1000.0, LIMITS).blocked_until == 1020.0


@pytest.mark.parametrize(
    ("code", "told", "cause"),
    [
        (0, False, "done"),
        (0, True, "told to leave"),
        (143, True, "told to leave"),
        (137, False, "killed by signal 9"),
        (134, False, "killed by signal 6"),
        (255, False, "unreachable"),
        (3, False, "crashed with exit code 3"),
    ],
)
def test_an_exit_code_tells_its_cause(code: int, told: bool, cause: str) -> None:
    assert exit_cause(code, told_to_leave=told) == cause
