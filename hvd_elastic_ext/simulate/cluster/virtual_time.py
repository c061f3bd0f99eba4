"""Virtual time: a queue of planned calls."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any, Final

BEGIN_S: Final = 100.0
"""The monotonic clock at the start of a simulation. It is not 0, which has a special meaning in some states."""


class Time:
    """A clock that only :class:`Sim` moves. It needs no lock: there is only one thread."""

    def __init__(self) -> None:
        self.now = BEGIN_S

    def mono(self) -> float:
        """See :class:`~hvd_elastic_ext.core.clock.Clock`."""
        return self.now

    def wall(self) -> float:
        """Return Unix seconds; every simulation begins at the same time."""
        return 1_000_000.0 + self.now

    def wait(self, event: threading.Event, timeout: float | None) -> bool:
        """Never called: no thread waits in virtual time."""
        raise NotImplementedError


class Sim:
    """Planned calls. Calls for the same time happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.time = Time()
        self.happened = 0
        """Number of calls so far."""
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = itertools.count()

    @property
    def now(self) -> float:
        """The present moment (mono)."""
        return self.time.now

    @property
    def next_at(self) -> float | None:
        """Return the time of the next event."""
        return self._queue[0][0] if self._queue else None

    def later(self, seconds: float, act: Callable[..., object], *args: Any) -> None:
        """Plan a call in some seconds."""
        self.at(self.time.now + seconds, act, *args)

    def at(self, when: float, act: Callable[..., object], *args: Any) -> None:
        """Plan a call at a time (mono)."""
        heapq.heappush(self._queue, (when, next(self._count), act, args))

    def happen(self, when: float) -> None:
        """Set the time to ``when``, and run everything that is due."""
        queue = self._queue
        self.time.now = max(self.time.now, when)
        while queue and queue[0][0] <= self.time.now:
            _, _, act, args = heapq.heappop(queue)
            self.happened += 1
            act(*args)
