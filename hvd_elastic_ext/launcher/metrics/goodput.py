"""The share of time in which training made progress, by the events of the journal. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Final

RECENT: Final = 50
"""Pairs of journalled steps, of which the median is the time of a step."""

Fields = Mapping[str, Any]


class Goodput:
    """``began``: when the launcher did. Times are monotonic seconds.

    Useful is the time from the first to the last step, less the pauses of new worlds, and less the time of steps that
    had to be done again. Time after the last step is not useful, so an outage counts while it lasts.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._useful_s = 0.0
        """Useful seconds of the earlier stretches. A sleep or a start of the job ends a stretch."""
        self._first: float | None = None
        self._last: tuple[float, int] | None = None
        self._lost_s = 0.0
        self._steady = False
        """No world has formed since the last step."""
        self._steps_s: deque[float] = deque(maxlen=RECENT)
        self.redone_s: defaultdict[str, float] = defaultdict(float)
        """Time of steps that were lost, by the cause of the world that has to do them again."""

    def note(self, event: str, fields: Fields, now: float) -> None:
        """Take in an event that happens ``now``."""
        if (took := _HANDLERS.get(event)) is not None:
            took(self, fields, now)

    def ratio(self, now: float) -> float | None:
        """The useful share of the time since the beginning; None before the first step."""
        if not self._useful_s and self._first is None:
            return None
        return min(1.0, (self._useful_s + self._stretch_s()) / max(now - self._began, 1e-9))

    def _stretch_s(self) -> float:
        if self._first is None or self._last is None:
            return 0.0
        return max(0.0, self._last[0] - self._first - self._lost_s)

    def _over(self) -> None:
        self._useful_s += self._stretch_s()
        self._first, self._last, self._lost_s = None, None, 0.0

    def _stepped(self, fields: Fields, now: float) -> None:
        step = fields.get("step")
        if not isinstance(step, int):
            return
        self._first = now if self._first is None else self._first
        if self._steady and self._last is not None and step > self._last[1]:
            self._steps_s.append((now - self._last[0]) / (step - self._last[1]))
        self._last, self._steady = (now, step), True

    def _resized(self, fields: Fields, _: float) -> None:
        self._steady = False
        again_s = self._time_of(fields.get("steps_lost"))
        self.redone_s[str(fields.get("cause"))] += again_s
        self._lost_s += again_s
        pause_s = fields.get("downtime_s")
        if pause_s is None:  # a start, or unknown: the time between the steps was not training
            self._over()
        else:
            self._lost_s += pause_s

    def _restarted(self, fields: Fields, _: float) -> None:
        self._lost_s += self._time_of(fields.get("steps_lost"))
        self._over()

    def _slept(self, _: Fields, __: float) -> None:
        self._over()

    def _time_of(self, steps: int | None) -> float:
        return (steps or 0) * (median(self._steps_s) if self._steps_s else 0.0)


_HANDLERS: Final[Mapping[str, Callable[[Goodput, Fields, float], None]]] = {
    "stepped": Goodput._stepped,
    "resized": Goodput._resized,
    "training_restarted": Goodput._restarted,
    "slept": Goodput._slept,
}
