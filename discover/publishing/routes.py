"""What each path of the HTTP interface answers."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from discover.common.health import Health
from discover.common.metrics import CONTENT_TYPE, Metrics
from discover.publishing.connections import choose_to_close
from discover.publishing.latest import LatestPublication, ReaderPosition
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.publication import Publication, to_json

HOLD = 30.0
"""Seconds after which a long poll is answered "nothing new" (204)."""

MAX_WAITING = 400
"""Long polls at a time: fewer than connections, so that probes always get through."""

SHORTEST_HOLD = 1.0
"""Seconds after which a long poll may be answered "nothing new" because another client wants its place."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


@dataclass(eq=False, slots=True)
class _Waiter:
    """A long poll: its source, and since when it waits."""

    source: str
    since: float
    woken: threading.Event = field(default_factory=threading.Event)


class Routes:
    """Answers requests, from any thread; ``hold`` is in seconds."""

    def __init__(
        self, board: LatestPublication, *, vitals: Health, metrics: Metrics, clock: Clock, hold: float = HOLD
    ) -> None:
        self._board = board
        self._metrics = metrics
        self._hold = hold
        self._clock = clock
        self._seats = threading.Lock()
        self._waiting: set[_Waiter] = set()
        self._closed = threading.Event()
        self._probes = {"/livez": vitals.live, "/startupz": vitals.started, "/readyz": vitals.ready}

    def answer(self, target: str, source: str = "") -> Answer | None:
        """Answer one request of a client at ``source``, and wait if it asks for that; None once closed."""
        path, query = _split(target)
        if path in self._probes:
            well, why = self._probes[path]()
            return Answer(200 if well else 503, f"{why}\n".encode())
        if path == "/metrics":
            return Answer(200, self._metrics.render(), CONTENT_TYPE)
        if path == "/hosts":
            return self._hosts(query, source)
        return Answer(404, b"there is /hosts /livez /startupz /readyz /metrics\n")

    def close(self) -> None:
        self._closed.set()
        self._board.close()

    def _hosts(self, query: dict[str, str], source: str) -> Answer | None:
        if "after" not in query:
            current = self._board.current
            return Answer(503, b"nothing published yet\n") if current is None else _document(current)
        after = query["after"]
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            return Answer(400, b"after= is the sequence number of the publication you have, 0 for none\n")
        waiter = self._seat(source)
        if waiter is None:
            return Answer(503, b"too many clients are waiting\n")
        try:
            news = self._board.wait_newer(
                ReaderPosition(int(after), query.get("source")), self._hold, woken=waiter.woken
            )
        finally:
            self._leave(waiter)
        if self._closed.is_set():
            return None
        return Answer(204) if news is None else _document(news)

    def _seat(self, source: str) -> _Waiter | None:
        """Return a place to wait in; if all are taken, the client that has waited longest is answered "nothing new"."""
        with self._seats:
            now = self._clock.mono()
            if len(self._waiting) >= MAX_WAITING:
                oldest = choose_to_close(now, self._waiting, after=SHORTEST_HOLD)
                if oldest is None:
                    return None
                self._waiting.discard(oldest)
                oldest.woken.set()
            waiter = _Waiter(source, now)
            self._waiting.add(waiter)
            return waiter

    def _leave(self, waiter: _Waiter) -> None:
        with self._seats:
            self._waiting.discard(waiter)


def _split(target: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urlsplit(target)
        return parts.path, {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    except ValueError:
        return "", {}


def _document(publication: Publication) -> Answer:
    return Answer(200, f"{to_json(publication)}\n".encode(), "application/json")
