"""How the daemon does: written by its loop, read by the probes of ``/livez``, ``/startupz`` and ``/readyz``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hvd_elastic_ext.core.clock import Clock

LOOP_TIMEOUT = 10.0
"""Seconds without a turn of the loop after which the daemon counts as stuck."""


@dataclass(frozen=True, slots=True)
class _State:
    loop_turned_at: float
    started: bool = False
    problem: str = "nothing published yet"


class Health:
    """Written by the loop only, read from any thread. Each answer is ``(well, reason in one line)``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._state = _State(loop_turned_at=clock.mono())

    def loop_turned(self) -> None:
        """Note that the loop took a turn."""
        self._state = replace(self._state, loop_turned_at=self._clock.mono())

    def report(self, *, published: bool, problem: str) -> None:
        """``published``: the first publication succeeded. ``problem``: why what is published may be outdated, or ""."""
        self._state = replace(self._state, started=self._state.started or published, problem=problem)

    def live(self) -> tuple[bool, str]:
        silence = self._clock.mono() - self._state.loop_turned_at
        if silence > LOOP_TIMEOUT:
            return False, f"the loop has not turned for {silence:.0f} s"
        return True, "alive"

    def started(self) -> tuple[bool, str]:
        state = self._state
        return (True, "published") if state.started else (False, state.problem)

    def ready(self) -> tuple[bool, str]:
        state = self._state
        return (False, state.problem) if state.problem else (True, "fresh")
