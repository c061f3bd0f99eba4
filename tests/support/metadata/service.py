"""The common parts of the stand-ins for metadata services: requests, replies, tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Protocol
from urllib.parse import parse_qs


@dataclass(frozen=True, slots=True)
class Call:
    """One request. ``headers``: by lower-case name."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes = b""
    port: int = 0
    """The client's port."""


def call(method: str, target: str, headers: Mapping[str, str], body: bytes = b"", port: int = 0) -> Call:
    path, _, query = target.partition("?")
    values = {name: found[-1] for name, found in parse_qs(query, keep_blank_values=True).items()}
    return Call(method, path, values, {name.lower(): value for name, value in headers.items()}, body, port)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Service(Protocol):
    """The service of one cloud. ``closing`` is set when no request may wait any more."""

    closing: threading.Event

    def answer(self, call: Call) -> Reply: ...


class Tokens:
    """Sessions by token: ``PUT`` returns a token, which is valid for the requested time."""

    PATH = "/latest/api/token"
    LONGEST_S = 21600

    def __init__(self, header: str) -> None:
        self.header = header.lower()
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._until)

    def give(self, call: Call) -> Reply:
        if "x-forwarded-for" in call.headers:
            return Reply(403)
        try:
            life_s = int(call.headers[f"{self.header}-ttl-seconds"])
        except (KeyError, ValueError):
            return Reply(400)
        if not 1 <= life_s <= self.LONGEST_S:
            return Reply(400)
        token = f"AQAE-token-{len(self._until)}=="
        self._until[token] = time.monotonic() + life_s
        return Reply(200, token, {f"{self.header}-ttl-seconds": str(life_s)})

    def number(self, call: Call) -> int | None:
        """Return the number of a request's session, in the order of their beginnings; None without a valid token."""
        token = call.headers.get(self.header)
        if token is None or self._until.get(token, 0.0) <= time.monotonic():
            return None
        return list(self._until).index(token)

    def expire(self) -> None:
        """End the validity of all tokens."""
        self._until = dict.fromkeys(self._until, 0.0)


def iso(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def mail(moment: float) -> str:
    return formatdate(moment, usegmt=True)
