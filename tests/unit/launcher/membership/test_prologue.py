"""Where processes that wait in ``hvd.init()`` meet others."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.membership.prologue import RECORD_MOST_S, RECORD_S, Meeting, Where, decide, waits_until

INIT, PROLOGUE, APART = Where


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], Meeting.READY),
        ([INIT, INIT], Meeting.READY),
        ([INIT, PROLOGUE], Meeting.WAIT),
        ([PROLOGUE], Meeting.WAIT),
        ([APART], Meeting.ALONE),
        ([PROLOGUE, APART, INIT], Meeting.ALONE),
    ],
)
def test_processes_meet_in_init_only_as_long_as_no_other_one_has_passed_it(
    others: list[Where], expected: Meeting
) -> None:
    assert decide(iter(others)) is expected


@pytest.mark.parametrize(
    ("expected", "there", "until"), [(False, False, None), (True, True, None), (True, False, 5.0 + RECORD_S)]
)
def test_one_that_comes_later_waits_for_what_collectives_returned_if_there_were_any_and_not_for_ever(
    *, expected: bool, there: bool, until: float | None
) -> None:
    assert waits_until(expected=expected, there=there, since=5.0, idle_since=5.0) == until


def test_the_time_in_which_it_could_not_come_counts_only_for_a_longer_limit() -> None:
    assert waits_until(expected=True, there=False, since=5.0, idle_since=95.0) == 95.0 + RECORD_S
    assert waits_until(expected=True, there=False, since=5.0, idle_since=900.0) == 5.0 + RECORD_MOST_S
