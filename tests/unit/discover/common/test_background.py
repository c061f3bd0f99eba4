"""Work beside the loop."""

from __future__ import annotations

import threading

import pytest

from discover.common.background import Aside
from hvd_elastic_ext.core.clock import ManualClock
from tests.support.waiting import wait_until


def nothing() -> None:
    """Nothing."""


def test_turns_come_when_their_time_has_come_or_at_a_poke(manual_clock: ManualClock) -> None:
    turns: list[float] = []

    def turn() -> float:
        turns.append(manual_clock.mono())
        return 10.0

    aside = Aside("test", turn, clock=manual_clock, interrupt=nothing)
    aside.start()
    wait_until(lambda: len(turns) == 1, what="the first turn")

    def second() -> bool:
        if len(turns) == 1:  # and it may have yet to begin to wait
            manual_clock.advance(1.0)
        return len(turns) > 1

    wait_until(second, what="the second turn")
    before = len(turns)
    aside.poke()  # the clock stands still from here on
    wait_until(lambda: len(turns) > before, what="the turn after the poke")
    aside.stop()
    assert turns[1] >= turns[0] + 10.0


def test_the_farewell_is_said_in_its_own_thread_and_once(manual_clock: ManualClock) -> None:
    said: list[str] = []
    aside = Aside(
        "test",
        lambda: 1.0,
        clock=manual_clock,
        interrupt=nothing,
        farewell=lambda: said.append(threading.current_thread().name),
    )
    aside.start()
    aside.stop()
    wait_until(lambda: said, what="the farewell")
    aside.stop()
    assert said == ["test"]


def test_one_that_waits_for_others_is_broken_off(manual_clock: ManualClock) -> None:
    over, begun = threading.Event(), threading.Event()

    def turn() -> float:
        begun.set()
        over.wait()
        return 1.0

    aside = Aside("test", turn, clock=manual_clock, interrupt=over.set, patience=0.01)
    aside.start()
    assert begun.wait(30)
    aside.stop()
    assert over.is_set()


def test_it_may_be_stopped_before_it_was_started(manual_clock: ManualClock) -> None:
    Aside("test", lambda: 1.0, clock=manual_clock, interrupt=nothing).stop()


def test_a_defect_is_logged_and_ends_nothing(manual_clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []

    def turn() -> float:
        turns.append(1)
        if len(turns) == 1:
            raise ZeroDivisionError
        return 1.0

    aside = Aside("test", turn, clock=manual_clock, interrupt=nothing)
    aside.start()
    wait_until(lambda: len(turns) == 1, what="the defect")
    aside.poke()
    wait_until(lambda: len(turns) == 2, what="the next turn")
    aside.stop()
    assert "test: a defect of hvd-discover" in caplog.text
