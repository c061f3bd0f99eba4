"""The link to one training process: lines with one JSON object each, in both directions, over a pair of sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from hvd_elastic_ext.agent.descriptors import CHUNK, Lines, Outbox
from hvd_elastic_ext.agent.event_loop import EventLoop
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.wire import decode

MAX_LINE_FROM_WORKER: Final = 64 << 10
"""Bytes of the longest line that a process may send."""
MAX_UNREAD: Final = 1 << 20
"""Most bytes that wait until the process reads them; more are dropped."""
MAX_AT_END: Final = 1 << 20


class SocketLink:
    """The agent's end. Never blocks. ``received`` gets messages of the process, ``warn`` each kind of problem once."""

    def __init__(
        self, loop: EventLoop, *, received: Callable[[dict[str, Any]], None], warn: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._received = received
        self._warn = warn
        self._warnings: set[str] = set()
        self._lines = Lines(MAX_LINE_FROM_WORKER)
        self._end, self.theirs = socket.socketpair()
        """``theirs`` is inherited by the process, and then closed here."""
        self._end.setblocking(False)
        self._unsent = Outbox(self._end.fileno())

    def listen(self) -> None:
        """Read what the process sends, from now on."""
        self._loop.watch(self._end.fileno(), self.read)

    def read(self) -> int:
        """Read the data that has come; return the number of bytes."""
        try:
            data = self._end.recv(CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._loop.unwatch(self._end.fileno())
        for line in self._lines.feed(data):
            self._take(line)
        return len(data)

    def drain(self) -> None:
        """Read the rest at the end of the process, up to a limit: its descendants may still write."""
        read = 0
        while read < MAX_AT_END and (size := self.read()):
            read += size

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send ``message`` as soon as there is room."""
        line = to_text(message).encode("ascii") + b"\n"
        if self._unsent.size + len(line) > MAX_UNREAD:
            self._warn_once("its process does not read its messages: they are dropped")
            return
        self._unsent.add(line)
        self._write()

    def close(self) -> None:
        """Close both ends here. Messages that still wait for the process are dropped."""
        self._loop.unwatch(self._end.fileno())
        self._end.close()
        self.theirs.close()

    def _write(self) -> None:
        before = -1
        while self._unsent.size not in (before, 0):  # as long as the socket accepts something
            before = self._unsent.size
            self._unsent.write()
        self._loop.write(self._end.fileno(), None if self._unsent.empty else self._write)

    def _take(self, line: bytes | None) -> None:
        if line is None:
            self._warn_once(f"a line of more than {MAX_LINE_FROM_WORKER} bytes on its link was dropped")
            return
        try:
            message = decode(line.decode())
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict) and isinstance(message.get("say"), str):
            self._received(message)
        else:
            self._warn_once("a line on its link that is not a JSON object with 'say' was dropped")

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warnings:
            self._warnings.add(problem)
            self._warn(problem)
