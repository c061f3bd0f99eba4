"""A clock that tests control."""

from __future__ import annotations

import threading


class ManualClock:
    """A clock that moves only by :meth:`advance`, which also wakes those that have waited long enough.

    It passes the contract suite of :class:`hvd_elastic_ext.core.clock.SystemClock`.
    """

    def __init__(self, *, wall: float = 1_000_000.0, mono: float = 100.0) -> None:
        self._moved = threading.Condition()
        self._wall = wall
        self._mono = mono

    def wall(self) -> float:
        """Changes only in :meth:`advance`."""
        with self._moved:
            return self._wall

    def mono(self) -> float:
        """Changes only in :meth:`advance`."""
        with self._moved:
            return self._mono

    def advance(self, seconds: float) -> None:
        """Move both readings forward, and wake those that have waited long enough."""
        if seconds < 0:
            raise ValueError("a monotonic clock cannot go back")
        with self._moved:
            self._wall += seconds
            self._mono += seconds
            self._moved.notify_all()

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """Wait for ``event``; ``timeout`` is in this clock's seconds. Without :meth:`advance` or the event it blocks
        for ever."""
        with self._moved:
            deadline = None if timeout is None else self._mono + timeout
            while not event.is_set():
                if deadline is not None and self._mono >= deadline:
                    return False
                # The event cannot wake this condition, so look at it often.
                # Virtual time stands still meanwhile.
                self._moved.wait(0.001)
            return True
