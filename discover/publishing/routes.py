"""What each path of the HTTP interface answers."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from discover.metrics import CONTENT_TYPE, Metrics
from discover.publishing.board import Board, Known
from discover.vitals import Vitals
from hvd_elastic_ext.core.publication import Publication, to_json

HOLD = 30.0
"""Seconds a long poll is held before it is answered "nothing new" (204)."""

MAX_WAITING = 400
"""Long polls held at a time: fewer than connections, so that probes always get through."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


class Routes:
    """Answers paths, from any thread; ``hold`` is in seconds."""

    def __init__(self, board: Board, *, vitals: Vitals, metrics: Metrics, hold: float = HOLD) -> None:
        self._board = board
        self._metrics = metrics
        self._hold = hold
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)
        self._closed = threading.Event()
        self._probes = {"/livez": vitals.live, "/startupz": vitals.started, "/readyz": vitals.ready}

    def answer(self, target: str) -> Answer | None:
        """Answer one request, waiting if it asks for that; None once closed."""
        path, query = _split(target)
        if path in self._probes:
            well, why = self._probes[path]()
            return Answer(200 if well else 503, f"{why}\n".encode())
        if path == "/metrics":
            return Answer(200, self._metrics.render(), CONTENT_TYPE)
        if path == "/hosts":
            return self._hosts(query)
        return Answer(404, b"there is /hosts /livez /startupz /readyz /metrics\n")

    def close(self) -> None:
        """Let go of whoever waits."""
        self._closed.set()
        self._board.close()

    def _hosts(self, query: dict[str, str]) -> Answer | None:
        if "after" not in query:
            current = self._board.current
            return Answer(503, b"nothing published yet\n") if current is None else _document(current)
        after = query["after"]
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            return Answer(400, b"after= is the sequence number of the publication you have, 0 for none\n")
        if not self._waiting.acquire(blocking=False):
            return Answer(503, b"too many clients are waiting\n")
        try:
            news = self._board.wait_newer(Known(int(after), query.get("source")), self._hold)
        finally:
            self._waiting.release()
        if self._closed.is_set():
            return None
        return Answer(204) if news is None else _document(news)


def _split(target: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urlsplit(target)
        return parts.path, {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    except ValueError:
        return "", {}


def _document(publication: Publication) -> Answer:
    return Answer(200, f"{to_json(publication)}\n".encode(), "application/json")
