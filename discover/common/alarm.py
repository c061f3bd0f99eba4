"""Calls back at a time that was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hvd_elastic_ext.core.clock import Clock


class Alarm:
    """Rings once for all that asked, at the earliest of the times asked for; then it has to be asked again."""

    def __init__(self, ring: Callable[[], None], *, clock: Clock) -> None:
        self._ring = ring
        self._clock = clock
        self._lock = threading.Lock()
        self._due: float | None = None
        self._poke = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="alarm", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def at(self, due: float) -> None:
        """Ask to be called at ``due``, in monotonic seconds, or at an earlier time that was asked for before."""
        with self._lock:
            if self._due is not None and self._due <= due:
                return
            self._due = due
        self._poke.set()

    def stop(self) -> None:
        """End the thread. May be repeated, and come before :meth:`start`."""
        self._stopping = True
        self._poke.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stopping:
            pause = self._pause()
            if pause is None or pause > 0:
                self._clock.wait(self._poke, pause)
                self._poke.clear()
            else:
                self._ring()

    def _pause(self) -> float | None:
        """Seconds until it has to ring, None if nobody asked; what is due is taken off."""
        with self._lock:
            if self._due is None:
                return None
            left = self._due - self._clock.mono()
            if left <= 0:
                self._due = None
            return left
