"""Threads beside the daemon's loop. A request to an API server may take seconds and must not delay other work."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

PAUSE_AFTER_ERROR: Final = 30.0
"""Seconds from an unexpected exception to the next turn."""

FINISH_TIMEOUT: Final = 0.1
"""Seconds that a request may still take after its thread was asked to end."""

INTERRUPT_GRACE: Final = 0.1
"""Seconds for a thread to notice that its request was interrupted."""


class PeriodicThread:
    """Calls ``turn`` again and again. ``turn`` returns the seconds to the next call; None waits for :meth:`wake`.

    ``interrupt`` aborts what the thread waits for. :meth:`stop` gives the thread ``finish_timeout`` seconds to end by
    itself. Then it calls ``interrupt`` and waits ``grace`` seconds more. The thread calls ``at_end`` last. It is a
    daemon thread: if it does not end, it ends with the process.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        *,
        clock: Clock,
        interrupt: Callable[[], None] = lambda: None,
        at_end: Callable[[], None] = lambda: None,
        finish_timeout: float = FINISH_TIMEOUT,
        grace: float = INTERRUPT_GRACE,
    ) -> None:
        self._name = name
        self._turn = turn
        self._clock = clock
        self._interrupt = interrupt
        self._at_end = at_end
        self._finish_timeout = finish_timeout
        self._grace = grace
        self._wake = threading.Event()
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether the thread was asked to end. It may still run."""
        return self._stop_at is not None

    @property
    def running(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread; its first turn begins at once. Call it once."""
        self._thread.start()

    def wake(self) -> None:
        """Begin the next turn without a pause. If a turn runs now, another follows it."""
        self._wake.set()

    def sleep(self, seconds: float) -> bool:
        """Wait within a turn, at most ``seconds``; return whether the thread has to end."""
        return self.stopping or (self._clock.wait(self._wake, seconds) and self.stopping)

    def begin_stop(self) -> None:
        """Ask the thread to end, and do not wait for it, so that many threads can end together. May be called again."""
        if self._stop_at is None:
            self._stop_at = time.monotonic()
        self._wake.set()
        if not self._finish_timeout:
            self._interrupt()

    def stop(self) -> None:
        """End the thread, and wait for it. May be called again, and before :meth:`start`."""
        self.begin_stop()
        if self._thread is threading.current_thread() or self._stop_at is None or not self.running:
            return
        finish_until = self._stop_at + self._finish_timeout
        self._thread.join(max(0.0, finish_until - time.monotonic()))
        until = max(finish_until, time.monotonic() if self._finish_timeout else 0.0) + self._grace
        while self.running and time.monotonic() < until:
            self._interrupt()  # more than once: the thread may begin another request meanwhile
            self._thread.join(0.05)

    def _run(self) -> None:
        while not self.stopping:
            self._wake.clear()
            try:
                pause = self._turn()
            except Exception:
                LOG.exception("%s: a defect of hvd-discover; trying again later", self._name)
                pause = PAUSE_AFTER_ERROR
            if not self.stopping:
                self._clock.wait(self._wake, pause)
        self._at_end()


class Timer:
    """Calls ``call`` at the earliest of the times given to :meth:`at`, and forgets all of them then."""

    def __init__(self, call: Callable[[], None], *, clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._lock = threading.Lock()
        self._due: float | None = None
        self._thread = PeriodicThread("timer", self._turn, clock=clock, finish_timeout=1.0)

    def start(self) -> None:
        """Start the thread that makes the calls. Call it once; :meth:`at` may be called before."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a call that is due may not be made. Waits about a second at most. May be called again."""
        self._thread.stop()

    def at(self, due: float) -> None:
        """Ask for a call at ``due`` (monotonic seconds)."""
        with self._lock:
            if self._due is not None and self._due <= due:
                return
            self._due = due
        self._thread.wake()

    def _turn(self) -> float | None:
        with self._lock:
            if self._due is None or (left := self._due - self._clock.mono()) > 0:
                return None if self._due is None else left
            self._due = None
        self._call()
        return 0.0
