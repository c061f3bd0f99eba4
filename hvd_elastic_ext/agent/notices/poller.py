"""Polls a metadata service: announcements become notices, and failures make the pauses longer. Runs in a child.

Which cloud's service it is says the setting, or the firmware of this machine, or else the service that answers. A new
cloud is a row in ``core/notice_sources.py`` and a module of that name beside this one, with its class as ``CLOUD``.
``tests/contract/notices/test_clouds.py`` then asks for all that belongs to it elsewhere.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from hvd_elastic_ext.agent.notices.files import Notice, soonest_of
from hvd_elastic_ext.agent.notices.metadata import Announcement, Ask, Cloud, HttpClient, NoResponse
from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.notice_sources import AUTO, CLOUDS

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


# --- which cloud -----------------------------------------------------------------------------------------


_DMI: Final = "/sys/class/dmi/id/"


class DetectedCloud:
    """The first of several clouds whose service answers. It is used from then on."""

    def __init__(self, candidates: list[tuple[Cloud, Ask]]) -> None:
        self._candidates = candidates

    @property
    def name(self) -> str:
        """The cloud's name, or ``AUTO`` until one of several has answered."""
        return self._candidates[0][0].name if len(self._candidates) == 1 else AUTO

    @property
    def every_s(self) -> float:
        """Seconds between two looks; those of the first candidate until one has answered."""
        return self._candidates[0][0].every_s

    @property
    def ahead_s(self) -> float:
        """Seconds by which the service's clock is ahead of this machine's, by its last answer."""
        return self._candidates[0][1].ahead_s

    def look(self) -> list[Announcement]:
        """All present announcements of the cloud. Raises :class:`NoResponse` if it, or every candidate, gives no
        answer."""
        if len(self._candidates) == 1:
            [(cloud, ask)] = self._candidates
            return cloud.look(ask)
        for cloud, ask in self._candidates:
            try:
                announcements = cloud.look(ask)
            except NoResponse:
                continue
            self._candidates = [(cloud, ask)]
            return announcements
        raise NoResponse("no cloud's metadata service answers here")


def choose(
    source: str, url: str | None, ask_at: Callable[[str], Ask], *, firmware: Callable[[str], str]
) -> DetectedCloud:
    """Return the cloud to poll, at ``url`` if given. Raises ``ValueError`` for an unknown ``source``."""
    if source != AUTO and source not in CLOUDS:
        raise ValueError(f"{source!r} is not a known cloud; known clouds are {', '.join(sorted(CLOUDS))}")
    named = cloud_of_firmware(firmware) if source == AUTO else source
    chosen = [name for name in CLOUDS if named in (None, name)]
    return DetectedCloud([(class_of(name)(), ask_at(url or CLOUDS[name].url)) for name in chosen])


def class_of(name: str) -> type[Cloud]:
    """Return the class of a cloud, from the module with its name."""
    cloud: type[Cloud] = import_module(f"{__package__}.{name}").CLOUD
    return cloud


def cloud_of_firmware(firmware: Callable[[str], str]) -> str | None:
    """Return the cloud that the firmware names; None if it names none."""
    marks = ((name, place, word) for name, spec in CLOUDS.items() for place, word in spec.firmware)
    return next((name for name, place, word in marks if word in firmware(place)), None)


def firmware(place: str) -> str:
    """One field of the firmware's tables; empty if it cannot be read."""
    try:
        with open(_DMI + place, encoding="ascii", errors="replace") as file:  # noqa: PTH123 - pathlib takes long to load
            return file.read(256).strip()
    except OSError:
        return ""
