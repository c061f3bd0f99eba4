"""One call at the earliest of the times that were asked for."""

import threading
import time

import pytest

from discover.common.alarm import Alarm
from tests.support.waiting import wait_until


@pytest.fixture
def rig(manual_clock):
    rings: list[float] = []
    alarm = Alarm(lambda: rings.append(manual_clock.mono()), clock=manual_clock)
    alarm.start()
    yield alarm, rings, manual_clock
    alarm.stop()


def test_it_rings_once_at_the_earliest_time_asked_for(rig):
    alarm, rings, clock = rig
    start = clock.mono()
    alarm.at(start + 9.0)
    alarm.at(start + 5.0)
    alarm.at(start + 7.0)
    clock.advance(4.0)
    time.sleep(0.05)
    assert rings == []
    clock.advance(1.0)
    wait_until(lambda: rings, what="the ring")
    clock.advance(60.0)
    time.sleep(0.05)
    assert rings == [start + 5.0]


def test_it_can_be_asked_again_when_it_has_rung(rig):
    alarm, rings, clock = rig
    for count in (1, 2, 3):
        alarm.at(clock.mono())  # what is due already rings at once
        wait_until(lambda count=count: len(rings) == count, what="the ring")


def test_it_can_be_asked_by_whom_it_rings(manual_clock):
    rings: list[float] = []

    def again() -> None:
        rings.append(manual_clock.mono())
        alarm.at(manual_clock.mono() + 1.0)

    alarm = Alarm(again, clock=manual_clock)
    alarm.start()
    try:
        alarm.at(manual_clock.mono())
        wait_until(lambda: manual_clock.advance(0.5) or len(rings) >= 3, what="three rings")
    finally:
        alarm.stop()


def test_it_ends_when_it_is_stopped_and_may_be_stopped_before_it_was_started(manual_clock):
    alarm = Alarm(lambda: None, clock=manual_clock)
    alarm.stop()
    started = Alarm(lambda: None, clock=manual_clock)
    started.start()
    started.stop()
    started.stop()
    assert not any(thread.name == "alarm" for thread in threading.enumerate())
