"""What the launcher says to a slot, heard one message at a time.

Nothing beyond the message that is asked for is taken off the link: whatever follows is for the program that takes over.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.worker.process.link import LONGEST_LINE, VARIABLE, is_announced

_PEEK: Final = 4096

Message = Mapping[str, Any]


class Gone(Exception):
    """The agent has gone, or what it says cannot be understood."""


class Line:
    """The slot's link, whose number is ``descriptor``; it stays open for whoever takes over."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(True)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Line:
        """The one that ``environ`` names. Raises :class:`Gone` where there is none."""
        number = environ.get(VARIABLE, "")
        if not is_announced(environ) or not number.isdigit():
            raise Gone("an agent of hvd-elastic is to start this program, with a link")
        try:
            return cls(int(number))
        except OSError as error:
            raise Gone(f"the link to the agent cannot be used: {error}") from error

    def say(self, what: str, **fields: Any) -> None:
        """Say something. Raises :class:`Gone` if nobody is there."""
        try:
            self._socket.sendall(json.dumps({"say": what, **fields}, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise Gone(f"the agent of this host has gone: {error}") from error

    def hear(self, *, within_s: float | None = None, beside: socket.socket | None = None) -> Message | None:
        """Wait for the next message.

        None when ``within_s`` seconds are over, or when there is something on ``beside``. Raises :class:`Gone`.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        poll = select.poll()
        for each in (self._socket, beside):
            if each is not None:
                poll.register(each, select.POLLIN)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = [number for number, _ in poll.poll(None if left is None else left * 1000)]
            if self._socket.fileno() not in ready:
                return None
            message = self._next()
            if message is not None:
                return message

    def close(self) -> None:
        """Let go of it, for good: somebody else holds it."""
        self._socket.close()
        os.close(self.descriptor)

    def _next(self) -> Message | None:
        line = bytearray()
        while not line.endswith(b"\n"):
            try:
                seen = self._socket.recv(_PEEK, socket.MSG_PEEK)
                end = seen.find(b"\n")
                line += self._socket.recv(end + 1 if end >= 0 else len(seen))
            except OSError as error:
                raise Gone(f"the agent of this host has gone: {error}") from error
            if not seen or len(line) > LONGEST_LINE:
                raise Gone("the agent of this host has gone")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) and isinstance(message.get("tell"), str) else None
