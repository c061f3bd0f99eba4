"""By how much steps take longer while a checkpoint is written: what was done before, and meanwhile. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

UNKNOWN: Final = 0.05
"""What is thought as long as nothing was measured."""
LEAST_S: Final = 5.0
"""Times that are shorter are not measured: what is known of steps is up to a second old."""
LEAST_STEPS: Final = 5
MOST: Final = 1.0


class Mark(NamedTuple):
    """When (mono) which step had been done."""

    at: float
    step: int


def slowed(before: tuple[Mark, Mark], meanwhile: tuple[Mark, Mark]) -> float | None:
    """The share by which steps took longer ``meanwhile`` than ``before``; None if that cannot be told.

    Between 0 and :data:`MOST`: what is faster is chance, and what takes twice as long has another cause.
    """
    usual, then = _step_s(*before), _step_s(*meanwhile)
    return None if usual is None or then is None else min(MOST, max(0.0, then / usual - 1.0))


def _step_s(first: Mark, last: Mark) -> float | None:
    took, steps = last.at - first.at, last.step - first.step
    return took / steps if took >= LEAST_S and steps >= LEAST_STEPS else None


class Slowing:
    """Of one world after the other: ``trains``, ``begins`` and ``ends`` are told in that order, or ``breaks``."""

    def __init__(self) -> None:
        self._since: Mark | None = None
        self._begun: Mark | None = None

    def trains(self, now: float, step: int) -> None:
        """A world trains, and nothing is written."""
        self._since = self._since or Mark(now, step)

    def begins(self, now: float, step: int) -> None:
        """Its commit of ``step`` begins to be written."""
        self._begun = Mark(now, step)

    def ends(self, now: float, step: int) -> float | None:
        """It is written; what that cost, if it can be told. ``step``: the newest one that is known."""
        since, begun, end = self._since, self._begun, Mark(now, step)
        self._since, self._begun = end, None
        return None if since is None or begun is None else slowed((since, begun), (begun, end))

    def breaks(self) -> None:
        """Something else has happened: what was measured says nothing."""
        self._since = self._begun = None
