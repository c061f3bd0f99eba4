"""Threads beside the loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from discover.threads import FINISH_TIMEOUT, INTERRUPT_GRACE, PeriodicThread, Timer
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until


def test_turns_come_when_their_time_has_come_or_at_a_wake(manual_clock: ManualClock) -> None:
    turns: list[float] = []

    def turn() -> float:
        turns.append(manual_clock.mono())
        return 10.0

    thread = PeriodicThread("test", turn, clock=manual_clock)
    thread.start()
    wait_until(lambda: len(turns) == 1, what="the first turn")

    def second() -> bool:
        if len(turns) == 1:  # and it may have yet to begin to wait
            manual_clock.advance(1.0)
        return len(turns) > 1

    wait_until(second, what="the second turn")
    before = len(turns)
    thread.wake()  # the clock stands still from here on
    wait_until(lambda: len(turns) > before, what="the turn after the wake")
    thread.stop()
    assert turns[1] >= turns[0] + 10.0


def test_at_end_is_called_once_in_the_thread_itself(manual_clock: ManualClock) -> None:
    names: list[str] = []
    thread = PeriodicThread(
        "test", lambda: 1.0, clock=manual_clock, at_end=lambda: names.append(threading.current_thread().name)
    )
    thread.start()
    thread.stop()
    wait_until(lambda: names, what="the end")
    thread.stop()
    assert names == ["test"]


@pytest.mark.parametrize("finish_timeout", [0.0, 0.01])
def test_a_thread_that_waits_is_interrupted(manual_clock: ManualClock, finish_timeout: float) -> None:
    over, begun = threading.Event(), threading.Event()

    def turn() -> float:
        begun.set()
        over.wait()
        return 1.0

    thread = PeriodicThread("test", turn, clock=manual_clock, interrupt=over.set, finish_timeout=finish_timeout)
    thread.start()
    assert begun.wait(30)
    thread.begin_stop()
    assert over.is_set() is (finish_timeout == 0.0)
    thread.stop()
    assert over.is_set()


def test_a_sleep_within_a_turn_ends_with_the_thread(manual_clock: ManualClock) -> None:
    woken: list[bool] = []
    thread = PeriodicThread("test", lambda: woken.append(thread.sleep(1e9)), clock=manual_clock)
    thread.start()
    thread.stop()
    wait_until(lambda: woken, what="the end of the sleep")
    assert woken == [True]


def test_a_defect_is_logged_and_ends_nothing(manual_clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []

    def turn() -> float:
        turns.append(1)
        if len(turns) == 1:
            raise ZeroDivisionError
        return 1.0

    thread = PeriodicThread("test", turn, clock=manual_clock)
    thread.start()
    wait_until(lambda: len(turns) == 1, what="the defect")
    thread.wake()
    wait_until(lambda: len(turns) == 2, what="the next turn")
    thread.stop()
    assert "test: a defect of hvd-discover" in caplog.text


def test_many_threads_that_hang_and_stop_together_take_as_long_as_one(manual_clock: ManualClock) -> None:
    over, begun = threading.Event(), threading.Semaphore(0)
    finish_timeout = 5 * FINISH_TIMEOUT

    def turn() -> float:
        begun.release()
        over.wait()
        return 1.0

    many = [
        PeriodicThread(f"test-{each}", turn, clock=manual_clock, finish_timeout=finish_timeout) for each in range(5)
    ]
    for each in many:
        each.start()
        begun.acquire()
    for each in many:
        each.begin_stop()
    since = time.monotonic()
    for each in many:
        each.stop()
    took = time.monotonic() - since
    over.set()
    for each in many:
        each.stop()
    assert took < 2 * finish_timeout + len(many) * INTERRUPT_GRACE


@pytest.mark.parametrize("make", [PeriodicThread, Timer], ids=["thread", "timer"])
def test_it_may_be_stopped_twice_and_before_it_was_started(make: Callable, manual_clock: ManualClock) -> None:
    def one() -> PeriodicThread | Timer:
        return Timer(lambda: None, clock=manual_clock) if make is Timer else make("t", lambda: 1.0, clock=manual_clock)

    one().stop()
    started = one()
    started.start()
    started.stop()
    started.stop()
    assert not any(thread.name in ("t", "timer") for thread in threading.enumerate())


Started = Callable[[Callable[[], None]], Timer]


@pytest.fixture
def start_timer(manual_clock: ManualClock) -> Iterator[Started]:
    made: list[Timer] = []

    def start(call: Callable[[], None]) -> Timer:
        timer = Timer(call, clock=manual_clock)
        made.append(timer)
        timer.start()
        return timer

    yield start
    for timer in made:
        timer.stop()


def test_a_timer_calls_once_at_the_earliest_time(start_timer: Started, manual_clock: ManualClock) -> None:
    calls: list[float] = []
    timer = start_timer(lambda: calls.append(manual_clock.mono()))
    start = manual_clock.mono()
    for due in (9.0, 5.0, 7.0):
        timer.at(start + due)
    manual_clock.advance(4.0)
    time.sleep(0.05)
    assert calls == []
    manual_clock.advance(1.0)
    wait_until(lambda: calls, what="the call")
    manual_clock.advance(60.0)
    time.sleep(0.05)
    assert calls == [start + 5.0]


def test_a_timer_can_be_set_again_also_by_its_own_call(start_timer: Started, manual_clock: ManualClock) -> None:
    calls: list[float] = []

    def again() -> None:
        calls.append(manual_clock.mono())
        timer.at(manual_clock.mono() + 1.0)

    timer = start_timer(again)
    timer.at(manual_clock.mono())
    wait_until(lambda: manual_clock.advance(0.5) or len(calls) >= 3, what="three calls")
