"""How long is waited for threads that were told to end."""

from __future__ import annotations

import threading
import time

from discover.common.background import BROKEN_OFF, PATIENCE, Aside
from discover.common.grace import Leave
from hvd_elastic_ext.core.clock import ManualClock


def test_a_leave_is_counted_from_its_beginning_and_begins_once() -> None:
    leave = Leave(1000.0)
    assert (leave.begun, leave.left) == (False, 1000.0)
    leave.begin()
    left = leave.left
    assert leave.begun
    assert 0.0 < left <= 1000.0
    leave.begin()
    assert leave.left <= left


def test_one_that_is_over_is_over() -> None:
    leave = Leave(0.0)
    leave.begin()
    assert leave.left == 0.0


def test_of_many_that_hang_and_were_told_together_all_are_waited_for_as_long_as_for_one(
    manual_clock: ManualClock,
) -> None:
    over, begun = threading.Event(), threading.Semaphore(0)
    patience = 10 * PATIENCE

    def turn() -> float:
        begun.release()
        over.wait()
        return 1.0

    many = [
        Aside(f"test-{number}", turn, clock=manual_clock, interrupt=lambda: None, patience=patience)
        for number in range(5)
    ]
    for each in many:
        each.start()
        begun.acquire()
    for each in many:
        each.hurry()
    since = time.monotonic()
    for each in many:
        each.stop()
    took = time.monotonic() - since
    over.set()
    for each in many:
        each.stop()
    assert took < 2 * patience + len(many) * BROKEN_OFF
