"""The clock interface. Clocks are arguments, so that tests can control time.

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
        """Unix seconds. They may jump in either direction, and are only for users to read."""

    def mono(self) -> float:
        """Seconds that never decrease, on the same scale for all processes of one machine."""

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
        """Wait in real time."""
        return event.wait(timeout)
