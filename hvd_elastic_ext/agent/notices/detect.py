"""Finds the cloud of this machine: by the setting, by its firmware, or by the service that answers.

A new cloud is a row in ``core/clouds.py`` and a module of that name beside this one, with its class as ``CLOUD``.
``tests/contract/notices/test_clouds.py`` then asks for all that belongs to it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final

from hvd_elastic_ext.agent.notices.metadata import Announcement, Ask, Cloud, NoResponse
from hvd_elastic_ext.core.clouds import AUTO, CLOUDS

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
        raise ValueError(f"{source!r} is not a cloud that is known; known are {', '.join(sorted(CLOUDS))}")
    named = cloud_of_firmware(firmware) if source == AUTO else source
    chosen = [name for name in CLOUDS if named in (None, name)]
    return DetectedCloud([(class_of(name)(), ask_at(url or CLOUDS[name].url)) for name in chosen])


def class_of(name: str) -> type[Cloud]:
    """Return the class of a cloud, from the module with its name."""
    found: type[Cloud] = import_module(f"{__package__}.{name}").CLOUD
    return found


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
