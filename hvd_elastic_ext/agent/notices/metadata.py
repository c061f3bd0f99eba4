"""The types that clouds and their pollers share: requests, answers and announcements. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple, Protocol, TypeVar

QUICK_S: Final = 2.0
"""Seconds for an answer from this machine's own host, unless the request waits for a change."""
NEAR_S: Final = 300.0
"""Seconds. A later event only becomes advice: a host that restarts in a week can still train today."""

T = TypeVar("T")


class NoResponse(Exception):
    """No service answers, or its answer is malformed. The message is one line for people."""


class Request(NamedTuple):
    """A question to a metadata service. ``within_s``: seconds until the answer must be complete."""

    method: str
    path: str
    headers: Mapping[str, str]
    within_s: float = QUICK_S


class Response(NamedTuple):
    """``headers`` by lower-case name; ``now``: Unix seconds by the clock of the service."""

    status: int
    body: str
    headers: Mapping[str, str]
    now: float


class Ask(Protocol):
    """Asks one metadata service. ``ahead_s``: how far its clock was ahead of ours when it answered last."""

    @property
    def ahead_s(self) -> float: ...
    def __call__(self, request: Request, /) -> Response:
        """Raises :class:`NoResponse`."""
        ...


class Announcement(NamedTuple):
    """A service's message about this machine.

    ``at``: when the machine will be gone, in Unix seconds of the cloud's clock. ``within_s``: if no time is
    given, the seconds after the announcement. ``advisory``: the event may not happen, or not soon.
    """

    reason: str
    at: float | None = None
    within_s: float | None = None
    advisory: bool = False


class Cloud(Protocol):
    """One kind of metadata service. ``every_s`` is the pause between two looks that its vendor advises."""

    name: str
    every_s: float

    def look(self, ask: Ask) -> list[Announcement]:
        """All present announcements. Raises :class:`NoResponse`; then the last answer stays valid."""
        ...


def body_of(request: Request, answer: Response) -> str:
    """The body of an answer. Raises :class:`NoResponse` if its status is not 200."""
    if answer.status != 200:
        raise NoResponse(f"{_shown(request)} is answered with {answer.status}")
    return answer.body


def parsed(request: Request, body: str, reading: Callable[[str], T]) -> T:
    """Parse ``body`` by ``reading``. Raises :class:`NoResponse` if that fails."""
    try:
        return reading(body)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise NoResponse(f"{_shown(request)} is answered with what cannot be read: {body[:40]!r}") from None


def or_last(asking: Callable[[], list[Announcement]], before: list[Announcement]) -> list[Announcement]:
    """Return the answer, or the last one if there is none now. So a failed request for one kind does not hide the other
    kinds."""
    try:
        return asking()
    except NoResponse:
        return before


def entries(body: str) -> list[dict[str, Any]]:
    """A list of objects in JSON. Raises ``ValueError``."""
    found = json.loads(body)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError("no list of objects")
    return found


def iso_time(text: str) -> float:
    """Unix seconds of ``2026-01-31T12:00:00Z``. Raises ``ValueError``."""
    return _unix(datetime.fromisoformat(text.strip().replace("Z", "+00:00")))


def http_time(text: str) -> float:
    """Unix seconds of ``Mon, 19 Sep 2016 18:29:47 GMT``, the day of the week being optional. Raises ``ValueError``."""
    return _unix(parsedate_to_datetime(text))


def _unix(moment: datetime) -> float:
    # A time without a zone is UTC everywhere here.
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)).timestamp()


def _shown(request: Request) -> str:
    return f"{request.method} {request.path.partition('?')[0]}"
