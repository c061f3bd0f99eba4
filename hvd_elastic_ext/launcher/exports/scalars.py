"""Which scalars a job has for TensorBoard, from the events of its journal. Pure.

They come from the launcher, not from the process of rank 0: rank 0 moves from host to host, and may be killed in the
middle of a file, while the launcher knows of every world, and writes one series beside its journal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MAX_VALUES: Final = 100
"""Values of a step that are written."""
MAX_NAME_CHARS: Final = 100
"""Characters of a name."""
_NOT_FINITE: Final = ("nan", "inf", "-inf")
"""The journal's texts for such numbers."""


class Point(NamedTuple):
    """Scalars of a step, by tag. ``lost_from``: earlier points of this step and of later ones are not valid any
    more."""

    step: int
    values: Mapping[str, float]
    lost_from: int | None = None


class Scalars:
    """Points of one launcher. The first one replaces what an earlier launcher wrote of later steps."""

    def __init__(self) -> None:
        self._newest: int | None = None
        self._agreed: int | None = None
        """The step on which a world has agreed since the last point: later ones are lost."""
        self._last: tuple[float, int] | None = None
        """Time (mono) and number of the last step; None if a world has formed since."""

    def take(self, event: str, fields: Mapping[str, Any], now: float, signals: Mapping[str, float]) -> Point | None:
        """Return the point of an event at ``now`` (mono); None if it makes none. ``signals``: their present values."""
        if event == "resized":
            self._last = None
        step = fields.get("step")
        if not isinstance(step, int) or step < 0:
            return None
        if event == "synced":  # a rank that has rolled back further than the others gets their steps
            self._agreed = step
        if event != "stepped":
            return None
        values = {"job/world_size": fields.get("size")}
        if self._last is not None and step > self._last[1] and now > self._last[0]:
            values["job/steps_per_second"] = (step - self._last[1]) / (now - self._last[0])
        reported = fields.get("values")
        values |= _named("training", reported if isinstance(reported, Mapping) else {})
        values |= _named("signals", signals)
        lost_from = self._lost_from(step)
        self._newest, self._last, self._agreed = step, (now, step), None
        found = {tag: number for tag, value in values.items() if (number := _number(value)) is not None}
        return Point(step, found, lost_from)

    def _lost_from(self, step: int) -> int | None:
        if self._newest is None:
            return step if self._agreed is None else min(step, self._agreed + 1)
        holds = min(self._newest, step - 1 if self._agreed is None else self._agreed)
        return holds + 1 if holds < self._newest else None


def _named(group: str, values: Mapping[Any, Any]) -> dict[str, Any]:
    return {f"{group}/{_readable(name)}": value for name, value in list(values.items())[:MAX_VALUES]}


def _readable(name: Any) -> str:
    """Return the name without characters that no file can contain, such as lone surrogates."""
    return str(name)[:MAX_NAME_CHARS].encode(errors="replace").decode()


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    try:
        return None if isinstance(value, bool) or not isinstance(value, int | float) else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
