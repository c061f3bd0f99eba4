"""How the daemon does: written by its loop, read by the probes of ``/livez``, ``/startupz`` and ``/readyz``."""

from __future__ import annotations

from hvd_elastic_ext.core.clock import Clock

LOOP_TIMEOUT = 10.0
"""Seconds without a turn of the loop after which the daemon counts as stuck."""


class Health:
    """Written by the loop only, read from any thread. Each answer is ``(well, reason in one line)``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_at = clock.mono()
        self._started = False
        self._problem = "nothing published yet"

    def loop_turned(self) -> None:
        """Take in that the loop has finished a turn."""
        self._turned_at = self._clock.mono()

    def report(self, *, published: bool, problem: str) -> None:
        """``published``: the first publication succeeded. ``problem``: why what is published may be outdated, or ""."""
        self._started, self._problem = self._started or published, problem

    def live(self) -> tuple[bool, str]:
        """Not well if the loop has not turned for more than :data:`LOOP_TIMEOUT` seconds."""
        silence = self._clock.mono() - self._turned_at
        if silence > LOOP_TIMEOUT:
            return False, f"the loop has not turned for {silence:.0f} s"
        return True, "alive"

    def started(self) -> tuple[bool, str]:
        """Well from the first publication on."""
        return (True, "published") if self._started else (False, self._problem)

    def ready(self) -> tuple[bool, str]:
        """Well while what is published is not outdated."""
        problem = self._problem
        return (False, problem) if problem else (True, "fresh")
