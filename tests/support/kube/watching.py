"""One open watch: which events it has to send, and when it ends."""

from __future__ import annotations

import random
from collections import deque
from typing import Protocol

from tests.support.kube import listing, statuses
from tests.support.kube.clock import ServerClock
from tests.support.kube.requests import Call
from tests.support.kube.store import Event, Store, dumps, event_line

BOOKMARK_EVERY_S = 60.0
LOOK_S = 0.5
"""Seconds between two checks of whether the client is still connected, while a watch has nothing to send."""


class Line(Protocol):
    """Sends to the client. Raises OSError when the client has gone."""

    def send(self, *parts: bytes) -> None: ...

    def gone(self) -> bool: ...

    def abort(self) -> None: ...


class Watch:
    """Runs in the thread of its connection. The methods under "Tests" may be called from any thread."""

    def __init__(self, store: Store, clock: ServerClock, call: Call) -> None:
        self.call = call
        self._store, self._clock = store, clock
        self._shelf = store.shelf(call.resource)
        self._head = listing.head(call.resource)
        self._wanted = listing.wanted(call)
        self._bookmarks = call.flag("allowWatchBookmarks")
        seconds = call.number("timeoutSeconds") or random.uniform(1800, 3600)
        self._until = clock.now() + seconds
        self._next_bookmark = self._bookmark_time()
        self._asked = listing.version(call)
        self.position = self._asked or 0
        self._says: deque[bytes] = deque()
        self._closing = False
        self._broken = False
        self._silent = False
        self._cut_next = False
        self._told = False
        self._from = self.position
        self.lines = 0

    # Tests

    def close(self) -> None:
        """End the watch in the same way as at its timeout."""
        self._closing = True
        self._wake()

    def vanish(self) -> None:
        """Break the connection now."""
        self._broken = True
        self._wake()

    def silence(self) -> None:
        """Send nothing from now on, and keep the connection open."""
        self._silent = True

    def say(self, line: bytes) -> None:
        """Send these bytes without a change, before the next event."""
        self._says.append(line)
        self._wake()

    def cut_next(self) -> None:
        """Break the connection in the middle of the next event."""
        self._cut_next = True

    def bookmark(self) -> None:
        """Send a bookmark now, if the client has asked for bookmarks."""
        self._next_bookmark = float("-inf")
        self._wake()

    # The connection

    def run(self, line: Line) -> None:
        """Send events until the watch ends."""
        try:
            self._begin(line)
            while not self._over():
                if not self._silent:
                    self._tell(line)
                if not self._pending() and line.gone():
                    return
            if self._broken:
                line.abort()
        except statuses.ApiError as error:
            if not self._told:  # a client that is too slow later gets no message
                line.send(error_line(error.body))
        except _CutError:
            line.abort()

    def _begin(self, line: Line) -> None:
        if self._asked:
            return
        with self._store.lock:
            cached = self._shelf.cached()
            keys, records = self._shelf.at(cached)
            found = [records[key] for key in keys if self._wanted(records[key])]
            self.position = self._from = cached
        self._send(line, [event_line("ADDED", self._head, each) for each in found])

    def _over(self) -> bool:
        return self._closing or self._broken or (not self._silent and self._clock.now() >= self._until)

    def _pending(self) -> bool:
        """Wait until there is something to send; return False if that takes long."""
        with self._store.lock:
            if self._ready():
                return True
            due = min(self._until, self._next_bookmark if self._bookmarks else self._until) - self._clock.now()
            self._shelf.changed.wait(min(max(due, 0.0), LOOK_S) if not self._silent else LOOK_S)
            return self._ready()

    def _ready(self) -> bool:
        if self._closing or self._broken:
            return True
        if self._silent:
            return False
        return bool(self._says) or self._shelf.newest() > self.position

    def _tell(self, line: Line) -> None:
        while self._says:
            line.send(self._says.popleft())
        with self._store.lock:
            events = self._shelf.since(self.position)
            cached = self._shelf.cached()
            latest = events[-1].revision if len(events) == 1000 else max(cached, self.position)
            # Do not send a bookmark that is not newer than the start of the watch. The cache does not know the store's
            # progress, so a watch sends nothing while its kind does not change.
            mute = latest <= self._from
        lines = [each for event in events if (each := self._line(event))]
        if lines:
            self._send(line, lines)
        self.position, self._told = latest, True
        if self._bookmarks and self._clock.now() >= self._next_bookmark:
            self._next_bookmark = self._bookmark_time()
            if not mute:
                self._send(line, [self._bookmark_line()])

    def _line(self, event: Event) -> bytes:
        kind = event.seen(self._wanted)
        return event.line(kind, self._head) if kind else b""

    def _send(self, line: Line, lines: list[bytes]) -> None:
        if self._cut_next and lines:
            line.send(lines[0][: len(lines[0]) // 2])
            raise _CutError
        line.send(*lines)
        self.lines += len(lines)

    def _bookmark_line(self) -> bytes:
        kind = self.call.resource.kind
        metadata = dumps({"resourceVersion": str(self.position), "creationTimestamp": None})
        rest = b"," + _EMPTY[kind] if kind in _EMPTY else b""
        return b'{"type":"BOOKMARK","object":{%s"metadata":%s%s}}\n' % (self._head, metadata, rest)

    def _bookmark_time(self) -> float:
        now = self._clock.now()
        last = self._until - 2  # real servers send one shortly before they end the watch
        return min(now + BOOKMARK_EVERY_S, last) if now < last else now + BOOKMARK_EVERY_S

    def _wake(self) -> None:
        with self._store.lock:
            self._shelf.changed.notify_all()


class _CutError(Exception):
    """The connection has to break here."""


def error_line(status: dict[str, object]) -> bytes:
    return b'{"type":"ERROR","object":%s}\n' % dumps(status)


_EMPTY = {"Pod": b'"spec":{"containers":null},"status":{}', "Node": b'"spec":{},"status":{}'}
