"""Every how many calls of ``state.commit()`` one is made: decided here, told to all, and compared with what they do.

Ranks change at one call among themselves, begin anew with every call in each world, and
leave none out while a commit is named for a checkpoint. Nothing of that has to be followed here: whoever
goes by another number than the one that is wanted is told it again.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import Final

from hvd_elastic_ext.launcher.rules.checkpoints import interval
from hvd_elastic_ext.launcher.rules.checkpoints.failure_rate import Failures
from hvd_elastic_ext.launcher.rules.checkpoints.interval import LATEST
from hvd_elastic_ext.launcher.rules.checkpoints.schedule import Cadence
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.roster import Worker
from hvd_elastic_ext.launcher.state.worlds import Worlds

ENOUGH: Final = 5
"""Commits that are measured before any is left out: the first ones find their memory."""
CHOOSE_S: Final = 10.0
"""How often the choice is looked at."""
AGAIN_S: Final = 5.0
"""When a rank that goes by another number is told again."""


class Thinning:
    """See the module's docstring; looked at by the driver. Without ``how`` all commits are made."""

    def __init__(self, station: Station, worlds: Worlds, how: Cadence | None) -> None:
        self._station = station
        self._worlds = worlds
        self._how = how
        self._every = how.steps if how is not None and how.steps is not None else 1
        self._choice: interval.Thinning | None = None
        self._failures = Failures()
        self._mended = worlds.mended
        self._watched_from = station.now()
        self._commits_s: deque[float] = deque(maxlen=LATEST)
        self._calls_s: deque[float] = deque(maxlen=LATEST)
        self._newest: tuple[int, int, int] | None = None
        self._look_at = self._choose_at = -math.inf
        self._tell_at = -math.inf

    def look(self, now: float) -> None:
        """Measure, choose, and tell those who go by another number."""
        auto = self._how is not None and self._how.auto
        if not auto and now < self._look_at:  # there may be thousands, and mostly nothing is to be said
            return
        self._look_at = now + AGAIN_S
        if not self._worlds.settled:
            return
        members = self._station.roster.present(self._worlds.members)
        if auto:
            self._measure(members)
            if now >= self._choose_at:
                self._choose_at = now + CHOOSE_S
                self._choose(now, hosts=len({worker.seat.host for worker in members}))
        others = [worker for worker in members if worker.every not in (None, self._every)]
        if others and now >= self._tell_at:
            self._tell_at = now + AGAIN_S
            self._station.tell_all(members, "thin", every=self._every)

    def _measure(self, members: list[Worker]) -> None:
        """Note what a commit took that is new: all wait for the slowest."""
        newest = max((worker.holds for worker in members if worker.holds is not None), default=None)
        commits = [worker.commit_s for worker in members if worker.commit_s is not None]
        calls = [worker.call_s for worker in members if worker.call_s is not None]
        if newest != self._newest and commits and calls:
            self._newest = newest
            self._commits_s.append(max(commits))
            self._calls_s.append(max(calls))

    def _choose(self, now: float, *, hosts: int) -> None:
        mended, self._mended = self._mended, self._worlds.mended
        for _ in range(self._mended - mended):
            self._failures = self._failures.failed()
        self._failures = self._failures.watched(now - self._watched_from, hosts)
        self._watched_from = now
        if len(self._commits_s) < ENOUGH:
            return
        before = self._choice
        self._choice = interval.commit_every(
            list(self._commits_s), median(self._calls_s), self._failures.rate(hosts), before=before
        )
        if self._choice is not before:
            self._every, self._tell_at = self._choice.steps, -math.inf
            self._station.record("interval", calls=self._every, reason=_said(self._choice))


def _said(choice: interval.Thinning) -> str:
    calls = "all calls of commit() commit" if choice.steps == 1 else f"one in {choice.steps} calls of commit() commits"
    return f"{calls}: {choice.reason}"
