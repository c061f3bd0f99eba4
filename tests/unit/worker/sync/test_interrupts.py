"""What a script is told that trains without checks. Interrupts themselves: tests/contract/worker."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.worker.comms import AloneComms
from hvd_elastic_ext.worker.sync.commit_interval import CommitSchedule
from hvd_elastic_ext.worker.sync.interrupts import UNCHECKED_S, Stopping
from tests.support.clock import ManualClock

WORDS = "no state.commit() in the first 30 s of training"


def stopping(clock: ManualClock) -> Stopping:
    made = Stopping(AloneComms(), clock, CommitSchedule())
    made.enter()
    return made


def test_a_script_that_trains_without_a_commit_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    tried = stopping(clock)
    tried.stepped()
    clock.advance(UNCHECKED_S)
    tried.stepped()
    assert caplog.text == ""
    for _ in range(3):
        clock.advance(UNCHECKED_S)
        tried.stepped()
    assert caplog.text.count(WORDS) == 1


def test_a_script_that_has_made_a_check_is_told_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    tried = stopping(clock)
    tried.stepped()
    tried.due()
    for _ in range(3):
        clock.advance(2 * UNCHECKED_S)
        tried.stepped()
    assert caplog.text == ""
