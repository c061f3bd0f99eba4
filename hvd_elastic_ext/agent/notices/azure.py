"""Microsoft Azure: Scheduled Events of the Instance Metadata Service.

- https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events; poll every second
- Statuses after which to ask again, for example 410 and 429:
  https://learn.microsoft.com/azure/virtual-machines/instance-metadata-service

The first request enables the service, and its answer may take two minutes. The service lists the events of a whole
scale set or availability set. Only events that name this machine in ``Resources`` count. The agent approves no event
(``StartRequests``), because the event would then start earlier on all machines that it names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hvd_elastic_ext.agent.notices.metadata import (
    NEAR_S,
    QUICK_S,
    Announcement,
    Ask,
    NoResponse,
    Request,
    body_of,
    http_time,
    parsed,
)

EVENTS: Final = "/metadata/scheduledevents?api-version=2020-07-01"
NAME: Final = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS: Final = {"Metadata": "true"}
FIRST_S: Final = 130.0
"""Seconds that the first answer may take."""
_LONGEST_NAME: Final = 256

_GOING: Final[Mapping[str, str]] = {
    "Preempt": "this spot machine is being taken back by Azure",
    "Terminate": "this machine is going to be deleted by Azure",
    "Reboot": "this machine is going to be rebooted by Azure",
    "Redeploy": "this machine is going to be moved by Azure, without its memory",
}
"""``Freeze`` is not among them, because the machine continues after a pause of seconds."""


class Azure:
    """Scheduled Events of Azure for this machine. The first look also asks for the machine's name."""

    name = "azure"
    every_s = 1.0

    def __init__(self) -> None:
        self._own: str | None = None
        self._answers = False

    def look(self, ask: Ask) -> list[Announcement]:
        """The events that name this machine. May take ``FIRST_S`` until the service has answered once."""
        own = self._own = self._own or _own_name(ask)
        request = Request("GET", EVENTS, HEADERS, QUICK_S if self._answers else FIRST_S)
        answer = ask(request)
        body = body_of(request, answer)
        self._answers = True
        return parsed(request, body, lambda body: announcements_of(events(body), own, answer.now))


CLOUD: Final = Azure


def _own_name(ask: Ask) -> str:
    request = Request("GET", NAME, HEADERS)
    name = body_of(request, ask(request)).strip()
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise NoResponse("what the service gives as this machine's name is not a name")
    return name


def events(body: str) -> Sequence[Mapping[str, Any]]:
    """The events of a document. Raises ``ValueError``, ``KeyError`` or ``TypeError`` if ``body`` is not
    such a document."""
    document = json.loads(body)
    # The incarnation shows whether the document has changed. Read an unchanged document too: its events come nearer.
    if type(document["DocumentIncarnation"]) is not int or not isinstance(document["Events"], list):
        raise ValueError("not a document of scheduled events")
    listed: list[Mapping[str, Any]] = document["Events"]
    return listed


def announcements_of(events: Sequence[Mapping[str, Any]], own: str, now: float) -> list[Announcement]:
    """The announcements for the machine called ``own``. An event that has started has no time."""
    announcements = []
    for event in events:
        kind, named = event["EventType"], [str(name).casefold() for name in event["Resources"]]
        if kind in _GOING and own.casefold() in named:
            at = http_time(event["NotBefore"]) if event.get("NotBefore") else None
            announcements.append(Announcement(_GOING[kind], at, advisory=at is not None and at > now + NEAR_S))
    return announcements
