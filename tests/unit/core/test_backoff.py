"""Pauses that double."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.job.job import MOST_S, pause_before_restart


def test_each_further_failure_doubles_the_pause_up_to_the_longest() -> None:
    assert [pause_after(failures, first=2.0, longest=10.0) for failures in (1, 2, 3, 4, 5)] == [2, 4, 8, 10, 10]
    assert pause_after(2, first=2.0, longest=10.0, jitter=0.5) == 6.0


@given(st.integers(1, 10_000), st.floats(0.01, 1000), st.floats(0.01, 1000), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_never_longer_than_the_longest_nor_shorter_than_the_first(
    failures: int, first: float, more: float, jitter: float
) -> None:
    assert first <= pause_after(failures, first=first, longest=first + more, jitter=jitter) <= first + more


@pytest.mark.parametrize("restarts", [1100, 100_000])
def test_a_job_that_restarts_for_weeks_still_has_a_pause(restarts: int) -> None:
    failed = JobFailed("it failed again")
    assert pause_before_restart(failed, restarts, policy="OnFailure", limit=10**6) == MOST_S
