"""Requests with a token. A ``PUT`` returns the token: few forged requests can use that method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.agent.notices.model import Announcement, Answer, Ask, NoAnswer, Request, body_of, understood

LIFE_S: Final = 21600
"""Seconds a token is good for: as long as can be had."""
_PATH: Final = "/latest/api/token"
_LONGEST: Final = 1024
_REFUSED: Final = (401, 403)


class Session:
    """``header`` is what the token travels in. Where it is not ``needed``, and there is none, nothing travels."""

    def __init__(self, header: str, *, needed: bool) -> None:
        self._header = header
        self._needed = needed
        self._token: str | None = None

    def get(self, ask: Ask, path: str) -> tuple[Request, Answer]:
        """Ask for ``path``; once more with a new token if the one at hand is not taken. Raises :class:`NoAnswer`."""
        fresh = self._token is None
        request, answer = self._get(ask, path)
        if answer.status in _REFUSED:
            self._token = None
            if not fresh:
                return self._get(ask, path)
        return request, answer

    def read(self, ask: Ask, path: str, reading: Callable[[str, float], list[Announcement]]) -> list[Announcement]:
        """What is answered at ``path``, read together with the time there; nothing for 404."""
        request, answer = self.get(ask, path)
        if answer.status == 404:
            return []
        return understood(request, body_of(request, answer), lambda body: reading(body, answer.now))

    def _get(self, ask: Ask, path: str) -> tuple[Request, Answer]:
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
        # It becomes a line of a request's head: only plain characters may go there.
        if not 0 < len(token) <= _LONGEST or not all("!" <= letter <= "~" for letter in token):
            raise NoAnswer(f"PUT {_PATH} is answered with what is no token")
        return token
