"""The server's own clock, which tests may stop and move."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable


class ServerClock:
    """Runs like this machine's clock until a test stops or moves it. The server also waits by this clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset = 0.0
        self._stopped: float | None = None
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> float:
        """Return the time in Unix seconds."""
        with self._lock:
            return self._at()

    def advance(self, seconds: float) -> None:
        """Move the clock by so many seconds at once; a negative number moves it back."""
        with self._lock:
            self._offset += seconds
        for tell in self._listeners:
            tell()

    def stop(self) -> None:
        """Stop the clock: from now on only :meth:`advance` moves it."""
        with self._lock:
            if self._stopped is None:
                self._stopped = time.time()

    def go(self) -> None:
        """Let the clock run again, from its present time."""
        with self._lock:
            if self._stopped is not None:
                self._offset += self._stopped - time.time()
                self._stopped = None

    def listen(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` after each :meth:`advance`."""
        self._listeners.append(tell)

    def _at(self) -> float:
        return (time.time() if self._stopped is None else self._stopped) + self._offset


def rfc3339(at: float) -> str:
    """Return a time as objects have it: whole seconds, UTC. ``at``: in Unix seconds."""
    return datetime.datetime.fromtimestamp(int(at), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
