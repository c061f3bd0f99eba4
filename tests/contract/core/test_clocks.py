"""What every clock promises, tried on each of them."""

import threading
import time

import pytest

from hvd_elastic_ext.core.clock import SystemClock
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until


class System:
    """The machine's clock: time passes by itself."""

    clock = SystemClock()

    def pass_time(self, seconds):
        time.sleep(seconds)


class Manual:
    def __init__(self):
        self.clock = ManualClock()

    def pass_time(self, seconds):
        self.clock.advance(seconds)


@pytest.fixture(params=[System, Manual])
def kind(request):
    return request.param()


@pytest.fixture
def waiter(kind):
    """Wait in a thread: ``waiter(event, timeout)`` returns the thread; its answer comes in ``answers``."""
    threads, events = [], []

    def start(event, timeout):
        def wait():
            thread.answer = kind.clock.wait(event, timeout)

        thread = threading.Thread(target=wait, daemon=True)
        thread.answer = None
        thread.start()
        threads.append(thread)
        events.append(event)
        return thread

    yield start
    for event in events:
        event.set()
    for thread in threads:
        thread.join(10)


def test_no_reading_of_a_clock_is_earlier_than_the_one_before(kind):
    readings = []
    for _ in range(5):
        readings.append((kind.clock.mono(), kind.clock.wall()))
        kind.pass_time(0.001)
    assert readings == sorted(readings)
    assert readings[-1][0] > readings[0][0]


def test_an_event_that_is_set_already_is_reported_at_once(kind):
    event = threading.Event()
    event.set()
    assert kind.clock.wait(event, 0) is True
    assert kind.clock.wait(event, 1000) is True
    assert kind.clock.wait(event, None) is True


@pytest.mark.parametrize("timeout", [0, -1])
def test_no_time_to_wait_means_one_look(kind, timeout):
    assert kind.clock.wait(threading.Event(), timeout) is False


def test_waiting_ends_when_the_time_is_over(kind, waiter):
    before = kind.clock.mono()
    thread = waiter(threading.Event(), 0.05)

    def over():
        kind.pass_time(0.01)
        return not thread.is_alive()

    wait_until(over, what="the end of the wait")
    assert thread.answer is False
    assert kind.clock.mono() - before >= 0.05


@pytest.mark.parametrize("timeout", [None, 1000])
def test_waiting_ends_when_the_event_is_set(kind, waiter, timeout):
    event = threading.Event()
    thread = waiter(event, timeout)
    event.set()
    thread.join(10)
    assert thread.answer is True


def test_each_waiter_has_its_own_deadline(kind, waiter):
    short, long = waiter(threading.Event(), 0.02), waiter(threading.Event(), 1000)

    def over():
        kind.pass_time(0.01)
        return not short.is_alive()

    wait_until(over, what="the end of the short wait")
    assert short.answer is False
    assert long.is_alive()
