"""The clock interface. Clocks are passed in, so that tests control time.

Nothing in this project orders events by wall-clock time: generations and
sequence numbers do that. ``wall`` exists for people who read the journal.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """The time that the code may use."""

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
