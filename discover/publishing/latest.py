"""Holds the newest publication for the threads of the HTTP server."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from hvd_elastic_ext.core.publication import Publication


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The newest publication that a waiting reader knows: its sequence number and, if known, its run of the daemon
    (``source``).
    """

    sequence: int
    source: str | None = None

    def outdated_by(self, current: Publication) -> bool:
        """Whether ``current`` is newer than what this reader knows.

        A number that is higher than that of ``current`` comes from another run, so ``current`` is newer.
        """
        if self.source is not None and self.source != current.source:
            return True
        return self.sequence != current.sequence


class LatestPublication:
    """A publisher whose readers are threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Publication | None = None
        self._waiting: dict[threading.Event, ReaderPosition] = {}
        self._closed = False

    @property
    def current(self) -> Publication | None:
        """The newest publication; None before the first."""
        return self._current

    def publish(self, publication: Publication) -> None:
        """Replace the publication, and wake the readers that do not know it. Never fails."""
        with self._lock:
            if self._current != publication:
                self._current = publication
                self._wake(publication)

    def wait_newer(self, known: ReaderPosition, timeout: float, *, woken: threading.Event) -> Publication | None:
        """Wait for a publication that the reader does not know, and return it. Return None after ``timeout`` seconds
        or :meth:`close`. Setting ``woken`` ends the wait.
        """
        with self._lock:
            if self._closed:
                return None
            newer = self._newer(known)
            if newer is not None:
                return newer
            self._waiting[woken] = known
        woken.wait(timeout)
        with self._lock:
            self._waiting.pop(woken, None)
            return None if self._closed else self._newer(known)

    def close(self) -> None:
        """End all waits. They and all later ones return None at once."""
        with self._lock:
            self._closed = True
            for woken in self._waiting:
                woken.set()

    def _wake(self, publication: Publication) -> None:
        for woken, known in self._waiting.items():
            if known.outdated_by(publication):
                woken.set()

    def _newer(self, known: ReaderPosition) -> Publication | None:
        current = self._current
        return current if current is not None and known.outdated_by(current) else None
