"""The metadata service of a cloud: requests, answers and announcements, tokens, and how it is asked over HTTP.

Loaded only in the child that polls. It asks over sockets, with limits of time and size, without redirects and proxies:
what answers at that address may be anything.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from hvd_elastic_ext.io.timed_stream import TimedStream

QUICK_S: Final = 2.0
"""Seconds for an answer from this machine's own host, unless the request waits for a change."""
NEAR_S: Final = 300.0
"""Seconds. A later event only becomes advice: a host that restarts in a week can still train today."""

T = TypeVar("T")


class NoResponse(Exception):
    """No service answers, or its answer is malformed. The message is one line for people."""


class Request(NamedTuple):
    """A question to a metadata service."""

    method: str
    path: str
    headers: Mapping[str, str]
    within_s: float = QUICK_S
    """Seconds until the answer must be complete."""


class Response(NamedTuple):
    """An answer of a metadata service."""

    status: int
    body: str
    headers: Mapping[str, str]
    """By lower-case name."""
    now: float
    """Unix seconds by the clock of the service."""


class Ask(Protocol):
    """Asks one metadata service. ``ahead_s``: how far its clock was ahead of ours when it answered last."""

    @property
    def ahead_s(self) -> float: ...
    def __call__(self, request: Request, /) -> Response:
        """Raises :class:`NoResponse`."""
        ...


class Announcement(NamedTuple):
    """A service's message about this machine."""

    reason: str
    at: float | None = None
    """When the machine will be gone, in Unix seconds of the cloud's clock."""
    within_s: float | None = None
    """If no time is given, the seconds from the announcement to that."""
    advisory: bool = False
    """Whether it may not happen, or not soon."""


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
        raise NoResponse(f"the answer to {_shown(request)} has status {answer.status}")
    return answer.body


def parsed(request: Request, body: str, reading: Callable[[str], T]) -> T:
    """Parse ``body`` by ``reading``. Raises :class:`NoResponse` if that fails."""
    try:
        return reading(body)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise NoResponse(f"the answer to {_shown(request)} cannot be read: {body[:40]!r}") from None


def or_last(asking: Callable[[], list[Announcement]], before: list[Announcement]) -> list[Announcement]:
    """Return the answer, or the last one if there is none now. So a failed request for one kind does not hide the other
    kinds."""
    try:
        return asking()
    except NoResponse:
        return before


def entries(body: str) -> list[dict[str, Any]]:
    """A list of objects in JSON. Raises ``ValueError``."""
    listed = json.loads(body)
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ValueError("not a list of objects")
    return listed


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


# --- requests with a token -------------------------------------------------------------------------------


LIFE_S: Final = 21600
"""Seconds for which a token is valid: the longest time that services allow."""
_PATH: Final = "/latest/api/token"
_LONGEST: Final = 1024
_REFUSED: Final = (401, 403)


class Session:
    """Requests with a token, which the service returns for a ``PUT``: few forged requests can use that method.

    ``header`` carries the token. If a token is not ``needed`` and the service gives none, requests have no such header.
    """

    def __init__(self, header: str, *, needed: bool) -> None:
        self._header = header
        self._needed = needed
        self._token: str | None = None

    def get(self, ask: Ask, path: str) -> tuple[Request, Response]:
        """Request ``path``; if the token is refused, try once more with a new one. Raises :class:`NoResponse`."""
        fresh = self._token is None
        request, answer = self._get(ask, path)
        if answer.status in _REFUSED:
            self._token = None
            if not fresh:
                return self._get(ask, path)
        return request, answer

    def read(self, ask: Ask, path: str, reading: Callable[[str, float], list[Announcement]]) -> list[Announcement]:
        """The announcements at ``path``, by ``reading`` from the body and the service's time; none for status 404."""
        request, answer = self.get(ask, path)
        if answer.status == 404:
            return []
        return parsed(request, body_of(request, answer), lambda body: reading(body, answer.now))

    def _get(self, ask: Ask, path: str) -> tuple[Request, Response]:
        if self._token is None:
            self._token = self._new(ask)
        request = Request("GET", path, {self._header: self._token} if self._token else {})
        return request, ask(request)

    def _new(self, ask: Ask) -> str:
        request = Request("PUT", _PATH, {f"{self._header}-ttl-seconds": str(LIFE_S)})
        answer = ask(request)
        if answer.status != 200 and not self._needed:
            return ""
        token = body_of(request, answer).strip()
        # It becomes a header line of a request, so only plain characters are allowed.
        if not 0 < len(token) <= _LONGEST or not all("!" <= letter <= "~" for letter in token):
            raise NoResponse(f"the answer to PUT {_PATH} is not a token")
        return token


# --- over HTTP -------------------------------------------------------------------------------------------


CONNECT_S: Final = 1.0
"""Seconds. A metadata service is on the same machine, so it accepts a connection at once."""
MAX_BODY: Final = 64 << 10
_MAX_ALL: Final = MAX_BODY + (32 << 10)
_TRUSTED_S: Final = 5.0
"""Seconds. A smaller difference between clocks is ignored, because answers have whole seconds only."""


class HttpClient:
    """Asks the service at ``url`` one question for each connection. Raises ``ValueError`` for another kind of URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.username or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not an address of a metadata service; write it as http://host:port")
        self._address = (parts.hostname, parts.port or 80)
        self._named = parts.netloc
        self._prefix = parts.path.rstrip("/")
        self.ahead_s = 0.0

    def __call__(self, request: Request) -> Response:
        deadline = time.monotonic() + request.within_s
        try:
            with socket.create_connection(self._address, min(CONNECT_S, request.within_s)) as connection:
                connection.sendall(self._words(request))
                stream: Any = TimedStream(connection, deadline, _MAX_ALL)
                response = HTTPResponse(stream, method=request.method)
                with contextlib.closing(response):
                    response.begin()
                    return self._answer(response)
        except TimeoutError:
            problem = "does not answer in time"
        except OSError as error:
            problem = error.strerror or str(error)
        except (HTTPException, ValueError) as error:
            problem = f"its answer is not HTTP ({type(error).__name__})"
        raise NoResponse(f"{self._named}: {problem}")

    def _words(self, request: Request) -> bytes:
        fields = {"Host": self._named, "Connection": "close", "Accept": "*/*", **request.headers}
        if request.method != "GET":
            fields["Content-Length"] = "0"
        lines = [f"{request.method} {self._prefix}{request.path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _answer(self, response: HTTPResponse) -> Response:
        body = response.read(MAX_BODY + 1)
        if len(body) > MAX_BODY:
            raise NoResponse(f"{self._named}: an answer is longer than {MAX_BODY} bytes")
        if response.length:
            raise NoResponse(f"{self._named}: an answer breaks off")
        headers = {name.lower(): value.strip() for name, value in response.getheaders()}
        now = time.time()
        self.ahead_s = _ahead_s(headers.get("date"), now)
        return Response(response.status, body.decode("utf-8", "replace"), headers, now + self.ahead_s)


def _ahead_s(date: str | None, now: float) -> float:
    """Seconds by which the service's clock is ahead of this machine's."""
    try:
        ahead_s = 0.0 if date is None else http_time(date) - now
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return ahead_s if abs(ahead_s) >= _TRUSTED_S else 0.0
