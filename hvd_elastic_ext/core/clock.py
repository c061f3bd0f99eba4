"""Time as a value that is passed in, so that tests own it.

Nothing in this project orders events by wall-clock time: generations and
sequence numbers do that. ``wall`` exists for people who read the journal.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What decisions and edges may know of time."""

    def wall(self) -> float:
        """Unix seconds; may jump in either direction; for people only."""

    def mono(self) -> float:
        """Seconds that never go back; the same scale for all processes of one machine."""

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """Block until ``event`` is set (True) or ``timeout`` seconds have passed (False)."""


class SystemClock:
    """The machine's own clock."""

    def wall(self) -> float:
        """By ``time.time()``."""
        return time.time()

    def mono(self) -> float:
        """By ``time.monotonic()``."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """In real time."""
        return event.wait(timeout)


class ManualClock:
    """A clock that moves only when told to: :meth:`advance` wakes those that waited that long.

    Kept honest by the contract suite that :class:`SystemClock` passes too.
    """

    def __init__(self, *, wall: float = 1_000_000.0, mono: float = 100.0) -> None:
        self._moved = threading.Condition()
        self._wall = wall
        self._mono = mono

    def wall(self) -> float:
        """Changes only in :meth:`advance` and :meth:`set_wall`."""
        with self._moved:
            return self._wall

    def mono(self) -> float:
        """Changes only in :meth:`advance`."""
        with self._moved:
            return self._mono

    def advance(self, seconds: float) -> None:
        """Move both readings forward and wake waiters that have waited long enough."""
        if seconds < 0:
            raise ValueError("a monotonic clock cannot go back; use set_wall for a clock step")
        with self._moved:
            self._wall += seconds
            self._mono += seconds
            self._moved.notify_all()

    def set_wall(self, wall: float) -> None:
        """Step the wall clock, as NTP or an operator might, leaving ``mono`` alone."""
        with self._moved:
            self._wall = wall

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """``timeout`` is in this clock's seconds: without :meth:`advance` or the event it blocks for ever."""
        with self._moved:
            deadline = None if timeout is None else self._mono + timeout
            while not event.is_set():
                if deadline is not None and self._mono >= deadline:
                    return False
                # The event has no way to wake this condition, so look at it often;
                # virtual time itself stands still meanwhile.
                self._moved.wait(0.001)
            return True
