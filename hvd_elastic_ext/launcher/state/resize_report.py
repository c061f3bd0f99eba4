"""What each change of the world cost: told with it, once the new world has done its first step.

The journal's line of a change is written a moment after the change then, with
the time of the change itself. Where no process ever tells of steps it is
written at once, and what it cost stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import seconds

UNTOLD_S: Final = 10.0
"""The longest that a line waits for the first step."""
UNTOLD_BY_OTHERS_S: Final = 120.0
"""The same where other processes do it: they have to load everything first."""


@dataclass(slots=True)
class _Change:
    """``first``: rank 0, whose step is waited for. ``pause_s``: the longest that a process did no step.

    ``stopped_at``: when the first process ended (mono), where none lives on that could tell its pause.
    """

    at: float
    generation: int
    first: Life
    fields: dict[str, Any]
    pause_s: float | None = None
    stopped_at: float | None = None


class Accounts:
    """See the module's docstring."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._change: _Change | None = None
        self._steps_are_told = False
        self._lost: list[int] = []
        self._stopped_at: float | None = None

    def stopped(self, now: float) -> None:
        """A process has ended, and in its place another one is to go on: until then nobody trains."""
        self._stopped_at = now if self._stopped_at is None else self._stopped_at

    def changed(self, first: Life, *, lost: int | None, **fields: Any) -> None:
        """A world has formed; ``first`` is its rank 0. ``lost``: steps that it does again, None if none is known."""
        self.close()
        said, self._lost = self._lost, []
        # Where somebody was lost and nobody says what it rolled back, steps may have been lost all the same.
        known = said or not (fields["failed"] or fields["cause"] == "start")
        rolled_back = max(said, default=0) if known and self._steps_are_told else None
        fields["steps_lost"] = max((n for n in (lost, rolled_back) if n is not None), default=None)
        stopped_at, self._stopped_at = self._stopped_at, None
        now = self._station.now()
        self._change = _Change(now, self._station.generation, first, fields, stopped_at=stopped_at)
        if not self._steps_are_told or fields["cause"] == "start":
            self.close()

    def rolled_back(self, steps: Any) -> None:
        """A process went back so many steps."""
        if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 0:
            if self._change is None:
                self._lost.append(steps)
            else:
                self._change.fields["steps_lost"] = max(self._change.fields["steps_lost"] or 0, steps)

    def going_on(self, life: Life, generation: int, message: Mapping[str, Any]) -> None:
        """A process has done its first step in the world of ``generation``."""
        self._steps_are_told = True
        change, pause_s = self._change, seconds(message.get("pause_s"))
        if change is None or change.generation != generation:
            return
        if pause_s is not None:
            change.pause_s = max(change.pause_s or 0.0, pause_s)
        elif change.stopped_at is not None and life == change.first:
            change.pause_s = self._station.now() - change.stopped_at
        if life == change.first:
            self.close()

    def look(self, now: float) -> None:
        """Give up waiting for a first step."""
        if self._change is None:
            return
        patience_s = UNTOLD_S if self._change.stopped_at is None else UNTOLD_BY_OTHERS_S
        if now - self._change.at >= patience_s:
            self.close()

    @property
    def untold(self) -> int | None:
        """The generation of the world whose line is still to be written."""
        return None if self._change is None else self._change.generation

    def to_json(self, now: float, *, wall: float) -> dict[str, Any] | None:
        """The line that is still to be written, for the next launcher, see :func:`tell`."""
        change = self._change
        if change is None:
            return None
        return {"generation": change.generation, "at": wall - (now - change.at), "fields": change.fields}

    def close(self) -> None:
        """Write what there is."""
        change, self._change = self._change, None
        if change is None:
            return
        pause = None if change.pause_s is None else round(change.pause_s, 3)
        self._station.journal.record(
            "resized", generation=change.generation, at_mono=change.at, **change.fields, downtime_s=pause
        )


def tell(noted: Any, *, journal: Journal, clock: Clock) -> None:
    """Write the line that the last launcher had not written when it ended; what the change cost in time is unknown."""
    match noted:
        case {"generation": int(generation), "at": float(at), "fields": {"steps_lost": _} as fields}:
            ago = max(0.0, clock.wall() - at)
            journal.record("resized", generation=generation, at_mono=clock.mono() - ago, **fields, downtime_s=None)
