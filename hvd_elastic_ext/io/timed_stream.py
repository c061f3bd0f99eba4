"""What arrives over a connection, with a deadline for all of it: agents need it too, and start in milliseconds."""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class TimedStream(io.RawIOBase):
    """Reads from a connection until ``deadline`` (monotonic) and up to ``most`` bytes, however slowly they arrive."""

    def __init__(self, connection: socket.socket, deadline: float, most: int) -> None:
        self._connection, self._deadline, self._left = connection, deadline, most
        self._raw = connection.makefile("rb", buffering=0)  # keeps the socket open as long as this

    def makefile(self, *_: object) -> io.BufferedReader:
        """What :class:`http.client.HTTPResponse` asks a socket for."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(left_s)
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise OSError("it answers without end")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
