"""Requests with a token. A ``PUT`` returns the token: few forged requests can use that method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.agent.notices.metadata import Announcement, Ask, NoResponse, Request, Response, body_of, parsed

LIFE_S: Final = 21600
"""Seconds for which a token is valid: the longest time that services allow."""
_PATH: Final = "/latest/api/token"
_LONGEST: Final = 1024
_REFUSED: Final = (401, 403)


class Session:
    """``header`` carries the token. If a token is not ``needed`` and the service gives none, requests have no such
    header."""

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
            raise NoResponse(f"PUT {_PATH} is answered with what is not a token")
        return token
