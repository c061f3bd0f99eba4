"""Where the newest publication hangs for those who ask and those who wait."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from hvd_elastic_ext.core.publication import Publication


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """What a waiting reader has: a sequence number, and whose, if it says so."""

    sequence: int
    source: str | None = None

    def outdated_by(self, current: Publication) -> bool:
        """True if ``current`` is news to this reader.

        A number this source has not reached yet comes from another life of the
        daemon, so whatever there is is news.
        """
        if self.source is not None and self.source != current.source:
            return True
        return self.sequence != current.sequence


class LatestPublication:
    """A publisher for readers inside this process: the HTTP server's threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Publication | None = None
        self._waiting: dict[threading.Event, ReaderPosition] = {}
        self._closed = False

    @property
    def where(self) -> str:
        return "push"

    @property
    def current(self) -> Publication | None:
        return self._current

    def publish(self, publication: Publication) -> None:
        with self._lock:
            if self._current != publication:
                self._current = publication
                self._wake(publication)

    def wait_newer(self, known: ReaderPosition, timeout: float, *, woken: threading.Event) -> Publication | None:
        """Block until there is news for a reader; return None after ``timeout`` seconds or at :meth:`close`.

        Whoever sets ``woken`` ends the wait, too.
        """
        with self._lock:
            if self._closed:
                return None
            news = self._news(known)
            if news is not None:
                return news
            self._waiting[woken] = known
        woken.wait(timeout)
        with self._lock:
            self._waiting.pop(woken, None)
            return None if self._closed else self._news(known)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for woken in self._waiting:
                woken.set()

    def _wake(self, publication: Publication) -> None:
        """Tell those to whom it is news, and let the others wait."""
        for woken, known in self._waiting.items():
            if known.outdated_by(publication):
                woken.set()

    def _news(self, known: ReaderPosition) -> Publication | None:
        current = self._current
        return current if current is not None and known.outdated_by(current) else None
