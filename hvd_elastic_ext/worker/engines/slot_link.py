"""The link of a slot, for a program that waits for its world. It reads one message at a time.

It reads nothing beyond that message: the next program needs all later ones.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.messages.slot_protocol import LINK
from hvd_elastic_ext.worker.process.link import LONGEST_LINE, is_announced

_PEEK: Final = 4096

Message = Mapping[str, Any]


class LinkClosed(Exception):
    """The agent is gone, or sends an invalid message."""


class LauncherLink:
    """The slot's link on ``descriptor``, which stays open for the next program."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(True)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> LauncherLink:
        """Return the link that ``environ`` names. Raises :class:`LinkClosed` if there is none."""
        number = environ.get(LINK, "")
        if not is_announced(environ) or not number.isdigit():
            raise LinkClosed("an agent of hvd-elastic is to start this program, with a link")
        try:
            return cls(int(number))
        except OSError as error:
            raise LinkClosed(f"the link to the agent cannot be used: {error}") from error

    def send(self, what: str, **fields: Any) -> None:
        """Send a message. Raises :class:`LinkClosed` if the agent is gone."""
        try:
            self._socket.sendall(to_text({"say": what, **fields}).encode("ascii") + b"\n")
        except OSError as error:
            raise LinkClosed(f"the agent of this host has gone: {error}") from error

    def receive(self, *, within_s: float | None = None, beside: socket.socket | None = None) -> Message | None:
        """Wait for the next message.

        None after ``within_s`` seconds, or when there is data on ``beside``. Raises :class:`LinkClosed`.
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
        """Close the link. Call it when another process has it."""
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
                raise LinkClosed(f"the agent of this host has gone: {error}") from error
            if not seen or len(line) > LONGEST_LINE:
                raise LinkClosed("the agent of this host has gone")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) and isinstance(message.get("tell"), str) else None
