"""Polls a metadata service: announcements become notices, and failures make the pauses longer."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Any, Final

from hvd_elastic_ext.agent.notices.detect import DetectedCloud, choose, firmware
from hvd_elastic_ext.agent.notices.files import Notice, soonest_of
from hvd_elastic_ext.agent.notices.metadata import Announcement, NoResponse
from hvd_elastic_ext.agent.notices.metadata_http import HttpClient
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.json_text import to_text

REPORT_AFTER: Final = 3
"""Failures in a row before a problem is reported: services restart."""
LOST_S: Final = 10.0
"""Longest pause for a service that has answered before: some give only 30 s notice."""
ABSENT_S: Final = 300.0
"""Longest pause for a service that has never answered: most likely this is another cloud."""
VOID_S: Final = 600.0
"""Seconds past its time after which an announcement belongs to an earlier life of this machine."""


class Poller:
    """Polls a cloud. ``report`` gets changes: ``going`` and ``advice``, or a ``problem``. ``before``: the last notice
    of the process that polled before.
    """

    def __init__(
        self,
        source: DetectedCloud,
        *,
        wall: Callable[[], float],
        report: Callable[..., None],
        before: Notice | None = None,
    ) -> None:
        self._source = source
        self._wall = wall
        self._report = report
        self._held: dict[Announcement, Notice] = {}
        """The notice of each announcement, with the time by the clock at its first report."""
        self._reported: tuple[Notice | None, str | None] | None = None
        self._before = before
        self._failures = 0
        self._problem_reported = False

    def once(self) -> float:
        """Poll once; return the pause after it, in seconds."""
        try:
            announcements = self._source.look()
        except NoResponse as error:
            return self._failed(str(error))
        self._failures = 0
        if self._problem_reported:
            self._problem_reported = False
            self._report(cloud=self._source.name, problem=None)
        self._take(announcements)
        return self._source.every_s

    def _failed(self, problem: str) -> float:
        self._failures += 1
        if self._failures == REPORT_AFTER:
            self._problem_reported = True
            self._report(cloud=self._source.name, problem=problem)
        return pause(self._failures, self._source.every_s, met=self._reported is not None)

    def _take(self, announcements: list[Announcement]) -> None:
        now = self._wall()
        self._held = {
            announcement: self._held.get(announcement) or self._came_to(announcement, now)
            for announcement in announcements
        }
        self._before = None
        hard = [held for announcement, held in self._held.items() if not announcement.advisory and not _over(held, now)]
        advice = next((announcement.reason for announcement in announcements if announcement.advisory), None)
        latest = (soonest_of(hard), advice)
        if latest != self._reported:
            self._reported = latest
            self._report(going=latest[0], advice=advice)

    def _came_to(self, announcement: Announcement, now: float) -> Notice:
        if (
            self._before is not None
            and self._before.reason == announcement.reason
            and announcement.within_s is not None
        ):
            return self._before  # the same announcement: its time counts from its first report
        return going(announcement, now, self._source.ahead_s)


def _over(held: Notice, now: float) -> bool:
    return held.by is not None and held.by + VOID_S <= now


def going(announcement: Announcement, now: float, ahead_s: float = 0.0) -> Notice:
    """Return the notice for an announcement that comes ``now``; the clock of its service is ``ahead_s`` ahead."""
    if announcement.within_s is not None:
        return Notice(announcement.reason, now + announcement.within_s)
    return Notice(announcement.reason, None if announcement.at is None else announcement.at - ahead_s)


def pause(failures: int, every_s: float, *, met: bool) -> float:
    """Seconds until the next poll, after so many failures in a row."""
    longest = max(LOST_S if met else ABSENT_S, every_s)
    return pause_after(failures + 1, first=every_s, longest=longest)


def serve(source: str, url: str | None, pipe: int, *, before: Notice | None) -> None:
    """Poll while the other end of ``pipe`` is open, and write each change there as one line of JSON."""

    def report(**latest: Any) -> None:
        os.write(pipe, to_text(latest).encode("ascii") + b"\n")

    try:
        chosen = choose(source, url, HttpClient, firmware=firmware)
    except ValueError as error:
        report(cloud=source, problem=str(error))
        select.select([pipe], [], [])
        return
    poller = Poller(chosen, wall=time.time, report=report, before=before)
    while True:
        pause_s = poller.once()
        if select.select([pipe], [], [], pause_s)[0]:
            return
