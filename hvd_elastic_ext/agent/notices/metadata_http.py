"""Asks a metadata service one question, over sockets, with limits of time and size. No redirects, no proxies."""

from __future__ import annotations

import contextlib
import socket
import time
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.parse import urlsplit

from hvd_elastic_ext.agent.notices.metadata import NoResponse, Request, Response, http_time
from hvd_elastic_ext.io.timed_stream import TimedStream

CONNECT_S: Final = 1.0
"""Seconds. A metadata service is on the same machine, so it accepts a connection at once."""
MAX_BODY: Final = 64 << 10
_MAX_ALL: Final = MAX_BODY + (32 << 10)
_TRUSTED_S: Final = 5.0
"""Seconds. A smaller difference between clocks is ignored, because answers have whole seconds only."""


class HttpClient:
    """Asks the service at ``url``. Raises ``ValueError`` for another kind of URL."""

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
            problem = f"answers what is not HTTP ({type(error).__name__})"
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
