"""The answers of each path of the HTTP interface."""

from __future__ import annotations

import threading
from urllib.parse import parse_qs, urlsplit

from discover.common.health import Health
from discover.metrics import CONTENT_TYPE, Metrics
from discover.publishing.latest import LatestPublication, ReaderPosition
from hvd_elastic_ext.core.publication import Publication, to_json
from hvd_elastic_ext.io.http_server import Response

HOLD = 30.0
"""Seconds after which a long poll gets the answer "nothing new" (204)."""


class Routes:
    """Answers requests, from any thread; ``hold`` is in seconds."""

    def __init__(self, board: LatestPublication, *, vitals: Health, metrics: Metrics, hold: float = HOLD) -> None:
        self._board = board
        self._metrics = metrics
        self._hold = hold
        self._closed = threading.Event()
        self._probes = {"/livez": vitals.live, "/startupz": vitals.started, "/readyz": vitals.ready}

    def answer(self, target: str, woken: threading.Event) -> Response | None:
        """Answer one request. A long poll waits for news, for ``hold`` seconds or until ``woken`` is set; after
        :meth:`close` it returns None.
        """
        path, query = _split(target)
        if path in self._probes:
            well, why = self._probes[path]()
            return Response(200 if well else 503, f"{why}\n".encode())
        if path == "/metrics":
            return Response(200, self._metrics.render(), CONTENT_TYPE)
        if path == "/hosts":
            return self._hosts(query, woken)
        return Response(404, b"there is /hosts /livez /startupz /readyz /metrics\n")

    def close(self) -> None:
        """End all long polls, and later ones at once, without an answer. May be called again."""
        self._closed.set()
        self._board.close()

    def _hosts(self, query: dict[str, str], woken: threading.Event) -> Response | None:
        if "after" not in query:
            current = self._board.current
            return Response(503, b"nothing published yet\n") if current is None else _document(current)
        after = query["after"]
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            return Response(400, b"after= is the sequence number of the publication you have, 0 for none\n")
        known = ReaderPosition(int(after), query.get("source"))
        news = self._board.wait_newer(known, self._hold, woken=woken)
        if self._closed.is_set():
            return None
        return Response(204) if news is None else _document(news)


def _split(target: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urlsplit(target)
        return parts.path, {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    except ValueError:
        return "", {}


def _document(publication: Publication) -> Response:
    return Response(200, f"{to_json(publication)}\n".encode(), "application/json")
