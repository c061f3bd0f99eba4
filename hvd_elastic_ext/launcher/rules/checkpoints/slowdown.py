"""How much slower steps are while a checkpoint is written. Reads no clock: times are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

DEFAULT_SLOWDOWN: Final = 0.05
"""Assumed until a measurement."""
MIN_S: Final = 5.0
"""Shorter times are not measured: step counts are up to a second old."""
MIN_STEPS: Final = 5
MAX_SLOWDOWN: Final = 1.0


class StepAt(NamedTuple):
    """A time (mono) and the last step done then."""

    at: float
    step: int


def slowed(before: tuple[StepAt, StepAt], meanwhile: tuple[StepAt, StepAt]) -> float | None:
    """The share by which steps took longer ``meanwhile`` than ``before``; None if not measurable.

    Between 0 and :data:`MAX_SLOWDOWN`: faster is chance, and twice as long has another cause.
    """
    usual, then = _step_s(*before), _step_s(*meanwhile)
    return None if usual is None or then is None else min(MAX_SLOWDOWN, max(0.0, then / usual - 1.0))


def _step_s(first: StepAt, last: StepAt) -> float | None:
    took, steps = last.at - first.at, last.step - first.step
    return took / steps if took >= MIN_S and steps >= MIN_STEPS else None


@dataclass(slots=True)
class SlowdownMeter:
    """Measures one write after the other: call ``trains``, ``begins``, ``ends`` in that order, or ``breaks``."""

    _since: StepAt | None = None
    _begun: StepAt | None = None

    def trains(self, now: float, step: int) -> None:
        """A world trains, and nothing is written."""
        self._since = self._since or StepAt(now, step)

    def begins(self, now: float, step: int) -> None:
        """Its commit of ``step`` begins to be written."""
        self._begun = StepAt(now, step)

    def ends(self, now: float, step: int) -> float | None:
        """It is written; return the slowdown if measurable. ``step``: the newest one known."""
        since, begun, end = self._since, self._begun, StepAt(now, step)
        self._since, self._begun = end, None
        return None if since is None or begun is None else slowed((since, begun), (begun, end))

    def breaks(self) -> None:
        """Something else changed: drop the measurement."""
        self._since = self._begun = None
