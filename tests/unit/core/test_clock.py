"""What only the manual clock does."""

import threading

import pytest


def test_it_refuses_to_go_back(manual_clock):
    with pytest.raises(ValueError, match="cannot go back"):
        manual_clock.advance(-1)


def test_the_wall_clock_may_step_without_the_other(manual_clock):
    mono = manual_clock.mono()
    manual_clock.set_wall(5.0)
    assert (manual_clock.wall(), manual_clock.mono()) == (5.0, mono)


def test_an_hour_passes_at_once_for_whoever_waits_it(manual_clock):
    done = []
    thread = threading.Thread(target=lambda: done.append(manual_clock.wait(threading.Event(), 3600)), daemon=True)
    thread.start()
    while thread.is_alive():
        manual_clock.advance(600)
        thread.join(0.01)
    assert done == [False]
