"""The checkpoints before an expected end of all hosts, and their times."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.launcher.checkpoints.save_then_stop import CANCELLED_AFTER_S, Call, call_for, lead_s


@pytest.mark.parametrize(
    ("now", "by", "before", "expected"),
    [
        (100.0, None, 8.0, Call.NONE),
        (100.0, 220.0, 8.0, Call.NOW),
        (211.9, 220.0, 8.0, Call.NOW),
        (212.0, 220.0, 8.0, Call.LAST),
        (110.0, 220.0, 125.0, Call.LAST),
        (220.0 + CANCELLED_AFTER_S, 220.0, 8.0, Call.LAST),
        (220.1 + CANCELLED_AFTER_S, 220.0, 8.0, Call.NONE),
    ],
)
def test_the_last_one_begins_as_late_as_it_can_be_made_for_sure(
    now: float, by: float | None, before: float, expected: Call
) -> None:
    assert call_for(now, by, before) is expected


def test_it_begins_the_sooner_the_longer_a_checkpoint_takes_and_its_commit_is_waited_for() -> None:
    assert lead_s(1.0) == 8.0
    assert lead_s(1.0, 4.0) == 16.0
    assert lead_s(40.0) == 125.0
