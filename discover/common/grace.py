"""A thread's leave: asked for once, and over some seconds later, however many are waited for one after another."""

from __future__ import annotations

import time


class Leave:
    """``seconds``: how long it lasts, from its beginning on."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None

    @property
    def begun(self) -> bool:
        return self._until is not None

    def begin(self) -> None:
        """May be repeated: only the first time counts."""
        if self._until is None:
            self._until = time.monotonic() + self._seconds

    @property
    def left(self) -> float:
        """Seconds; all of them before its beginning."""
        return self._seconds if self._until is None else max(0.0, self._until - time.monotonic())
