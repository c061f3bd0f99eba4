"""Where processes that wait in ``hvd.init()`` meet others."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.rules.membership.prologue import Meeting, Where, decide

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
