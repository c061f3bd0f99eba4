"""Whether the daemon is well. Its loop writes this; the paths ``/livez``, ``/startupz`` and ``/readyz`` read it."""

from __future__ import annotations

from hvd_elastic_ext.core.clock import Clock

LOOP_TIMEOUT = 10.0
"""After so many seconds without a turn of the loop, the daemon counts as stuck."""


class Health:
    """Only the loop writes; any thread may read. Each answer is ``(well, reason in one line)``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_at = clock.mono()
        self._started = False
        self._problem = "nothing published yet"

    def loop_turned(self) -> None:
        """Record that the loop has finished a turn."""
        self._turned_at = self._clock.mono()

    def report(self, *, published: bool, problem: str) -> None:
        """``published``: the last publication is in every place. ``problem``: why it may be outdated, or ""."""
        self._started, self._problem = self._started or published, problem

    def live(self) -> tuple[bool, str]:
        """Not well if the loop has not turned for more than :data:`LOOP_TIMEOUT` seconds."""
        silence = self._clock.mono() - self._turned_at
        if silence > LOOP_TIMEOUT:
            return False, f"the loop has not turned for {silence:.0f} s"
        return True, "alive"

    def started(self) -> tuple[bool, str]:
        """Well once a publication has reached every place."""
        return (True, "published") if self._started else (False, self._problem)

    def ready(self) -> tuple[bool, str]:
        """Well while the published hosts are not outdated."""
        problem = self._problem
        return (False, problem) if problem else (True, "fresh")
