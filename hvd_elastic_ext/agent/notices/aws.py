"""Amazon EC2: the Instance Metadata Service, version 2.

- Tokens: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-v2-how-it-works.html
- Spot interruptions: announced 120 s ahead; poll every 5 s:
  https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
- Rebalance recommendations: a spot interruption may follow, or may not:
  https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
- Scheduled events: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html

Status 404 means that nothing is announced. By default, the answer to the ``PUT`` for a token crosses only one hop. So a
container with its own network gets no answer unless the instance's hop limit is 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.agent.notices.metadata import (
    NEAR_S,
    Announcement,
    Ask,
    Session,
    entries,
    http_time,
    iso_time,
    or_last,
)

SPOT: Final = "/latest/meta-data/spot/instance-action"
REBALANCE: Final = "/latest/meta-data/events/recommendations/rebalance"
SCHEDULED: Final = "/latest/meta-data/events/maintenance/scheduled"

_ENDS: Final[Mapping[str, str]] = {"terminate": "terminated", "stop": "stopped", "hibernate": "hibernated"}
_EVENTS: Final[Mapping[str, str]] = {
    "instance-stop": "is going to stop this instance",
    "instance-retirement": "is going to retire this instance",
    "instance-reboot": "is going to reboot this instance",
    "system-reboot": "is going to reboot this instance's machine",
}
"""Scheduled events that end the processes of this machine."""


class Aws:
    """The Instance Metadata Service of EC2. Each question needs a token."""

    name = "aws"
    every_s = 5.0

    def __init__(self) -> None:
        self._session = Session("X-aws-ec2-metadata-token", needed=True)
        self._lesser: dict[str, list[Announcement]] = {}

    def look(self, ask: Ask) -> list[Announcement]:
        """A spot interruption alone, if there is one; else a rebalance recommendation and scheduled events."""
        if taken_back := self._session.read(ask, SPOT, interruption):
            return taken_back  # at once: nothing is more urgent
        for path, reading in ((REBALANCE, rebalance), (SCHEDULED, scheduled)):
            self._lesser[path] = or_last(
                lambda path=path, reading=reading: self._session.read(ask, path, reading),  # type: ignore[misc]
                self._lesser.get(path, []),
            )
        return [announcement for announcements in self._lesser.values() for announcement in announcements]


CLOUD: Final = Aws


def interruption(body: str, _: float) -> list[Announcement]:
    """Parse an answer such as ``{"action": "terminate", "time": "2017-09-18T08:22:00Z"}``."""
    action: dict[str, Any] = json.loads(body)
    end = _ENDS.get(action["action"], "taken back")
    return [Announcement(f"this spot instance is going to be {end} by AWS", iso_time(action["time"]))]


def rebalance(body: str, _: float) -> list[Announcement]:
    """Parse an answer such as ``{"noticeTime": "2020-10-27T08:22:00Z"}``."""
    iso_time(json.loads(body)["noticeTime"])
    return [Announcement("this spot instance is likely to be taken back by AWS", advisory=True)]


def scheduled(body: str, now: float) -> list[Announcement]:
    """Parse a list of events, each with ``Code``, ``State`` and ``NotBefore``."""
    announcements = []
    for event in entries(body):
        if event.get("Code") in _EVENTS and event.get("State") == "active":
            at = http_time(event["NotBefore"])
            announcements.append(Announcement(f"AWS {_EVENTS[event['Code']]}", at, advisory=at > now + NEAR_S))
    return announcements
