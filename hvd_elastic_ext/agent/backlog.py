"""Events that wait for the launcher, in order. The queue is bounded and counts the events that do not fit."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.agent.descriptors import FULL
from hvd_elastic_ext.core.json_text import to_text

MAX_EVENT_BYTES: Final = 8 << 20
"""Bytes of events, other than output, that are kept."""


class QueuedEvent(NamedTuple):
    """An event. ``size``: characters of its ``text`` if it has one, else bytes of its JSON."""

    message: dict[str, Any]
    size: int

    @property
    def is_output(self) -> bool:
        """Whether this is output of a training process, which has a limit of its own."""
        return bool(self.message["event"] == "output")


class Backlog:
    """The queue."""

    def __init__(self) -> None:
        self._queue: deque[QueuedEvent] = deque()
        self._size = {True: 0, False: 0}
        self._dropped = {True: 0, False: 0}

    def __bool__(self) -> bool:
        return bool(self._queue)

    @property
    def too_much_output(self) -> bool:
        """Whether more than ``FULL`` of output waits, by ``size``; other events do not count."""
        return self._size[True] > FULL

    def put(self, message: dict[str, Any], *, connected: bool) -> None:
        """Add an event. While connected, the source of output limits it (see ``full``); else this method does."""
        text = message.get("text")
        news = QueuedEvent(
            message, len(text.encode(errors="replace")) if isinstance(text, str) else len(to_text(message))
        )
        limit = MAX_EVENT_BYTES if not news.is_output else None if connected else FULL
        if limit is not None and self._size[news.is_output] + news.size > limit:
            self._dropped[news.is_output] += news.size if news.is_output else 1
        else:
            self._queue.append(news)
            self._size[news.is_output] += news.size

    def pop(self) -> QueuedEvent:
        """Take the oldest event."""
        news = self._queue.popleft()
        self._size[news.is_output] -= news.size
        return news

    def put_back(self, news: QueuedEvent) -> None:
        """Make ``news`` the oldest event again."""
        self._queue.appendleft(news)
        self._size[news.is_output] += news.size

    def dropped(self) -> dict[str, int]:
        """Bytes of output and number of other events dropped since the last call; empty if none."""
        output, news = self._dropped[True], self._dropped[False]
        self._dropped = {True: 0, False: 0}
        return {"output": output, "news": news} if output or news else {}
