"""Where hosts come from: the interface of all sources, and the two that need no cluster.

A source shows the whole present state each time it is read, so a change that nobody has noticed is in the next look.
It never decides what follows from a look that has failed: see :func:`discover.daemon.loop.decide`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from hvd_elastic_ext.core.errors import SourceUnavailable
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Departure, parse_hosts_text
from hvd_elastic_ext.io.file_watch import STOP_S, BeingWritten, FileWatch, read_text


@dataclass(frozen=True, slots=True)
class Observation:
    """The hosts that a source shows at one look. Their order has no meaning."""

    hosts: HostSet
    """Those that can be used."""
    departing: tuple[Departure, ...] = ()
    """Those that are about to go."""
    doubt: str = ""
    """Why this may be outdated; else empty."""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """The source is changing at this moment. This is an error only if it lasts. ``where`` and ``why`` are as in
    :class:`SourceUnavailable`.
    """

    where: str
    why: str


class Source(Protocol):
    """Returns the present hosts, and reports when to read them again.

    :meth:`read` returns the whole present state, even if changes were missed. A source never decides what follows from
    a failed look.
    """

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to watch. The source calls ``changed``, from any thread, when :meth:`read` may return something new."""

    def read(self) -> Observation | Unsettled:
        """Look now.

        Raises :class:`SourceUnavailable` if the source cannot be read now, :class:`BadHosts` if its content is not a
        list of hosts.
        """

    def stop(self) -> None:
        """End the watch and its threads. May be called again, and before :meth:`start`."""


# --- a fixed list


class StaticSource:
    """A fixed list of hosts."""

    def __init__(self, hosts: HostSet) -> None:
        self._sight = Observation(hosts)

    def start(self, changed: Callable[[], None]) -> None:
        """Does nothing; ``changed`` is never called."""

    def read(self) -> Observation:
        """Return the hosts, always as the same object."""
        return self._sight

    def stop(self) -> None:
        """Does nothing, because there is no thread."""


# --- a file


READ_TIMEOUT: Final = 0.3
"""Seconds that a look waits for a read. Most reads take milliseconds; that of an empty file takes one second. A read
from a file system that stalls may never end, and must not stop the daemon's loop.
"""


class FileSource:
    """Reads ``host:slots`` lines from ``path``; a bare ``host`` has ``slots`` slots, if given.

    An empty file that no process writes means no hosts. If the file is missing, the hosts are not known.
    """

    def __init__(self, path: Path, *, slots: int | None = None) -> None:
        self._path = path
        self._slots = slots
        self._watch: FileWatch | None = None
        self._changed: Callable[[], None] = lambda: None
        self._reading: _Reading | None = None
        self._outdated = False
        """The file has changed since the last read began."""

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to watch. ``changed`` is also called right after the start. Call it once."""
        self._changed = changed
        self._watch = FileWatch(self._path, self._note)
        self._watch.start()

    def read(self) -> Observation | Unsettled:
        """Read the file. If that takes long, return :class:`Unsettled`, and call ``changed`` when the read ends."""
        begun_before = self._reading is not None
        if self._reading is None:
            self._outdated = False
            self._reading = _Reading(self._path, self._sight, on_late_end=lambda: self._changed())
        if not self._reading.is_over(within=READ_TIMEOUT):
            return Unsettled(str(self._path), "it is not read to its end: its file system is slow, or stands still")
        reading, self._reading = self._reading, None
        if begun_before and self._outdated:
            self._changed()
        return reading.outcome()

    def stop(self) -> None:
        """End the watch. Waits at most :data:`STOP_S` seconds for a slow read; such a read ends with the process."""
        until = time.monotonic() + STOP_S
        self._changed = lambda: None
        if self._watch is not None:
            self._watch.stop()
        if self._reading is not None:
            self._reading.join(max(0.0, until - time.monotonic()))

    def _note(self) -> None:
        self._outdated = True
        self._changed()

    def _sight(self) -> Observation | Unsettled:
        try:
            text = read_text(self._path)
        except BeingWritten as error:
            return Unsettled(error.where, error.why)
        return Observation(parse_hosts_text(text, where=str(self._path), default_slots=self._slots))


class _Reading:
    """One read, in a daemon thread. ``on_late_end`` is called if it ends after :meth:`is_over` has returned False."""

    def __init__(
        self, path: Path, read: Callable[[], Observation | Unsettled], *, on_late_end: Callable[[], None]
    ) -> None:
        self._read = read
        self._on_late_end = on_late_end
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._is_late = False
        self._seen: Observation | Unsettled | Exception
        self._thread = threading.Thread(target=self._run, name=f"read {path}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            raise SourceUnavailable(str(path), "no thread can be started to read it") from None

    def is_over(self, *, within: float) -> bool:
        """Wait at most ``within`` seconds; return whether the read has ended."""
        if self._over.wait(within):
            return True
        with self._lock:
            self._is_late = not self._over.is_set()
            return not self._is_late

    def outcome(self) -> Observation | Unsettled:
        if isinstance(self._seen, Exception):
            raise self._seen
        return self._seen

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._seen = self._read()
        except Exception as error:  # noqa: BLE001 - outcome() raises it
            self._seen = error
        with self._lock:
            self._over.set()
        if self._is_late:
            self._on_late_end()
