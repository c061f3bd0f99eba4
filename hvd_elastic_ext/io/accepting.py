"""Accepts connections in an asyncio loop: one in each turn, with a pause where descriptors run out.

asyncio's own servers accept a hundred at once, and log a traceback for each that fails.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from hvd_elastic_ext.core.connections import PAUSE_S, SAY_AGAIN_S

LOG = logging.getLogger(__name__)


class Listener:
    """Calls ``came`` with each connection, which does not block, and its address. ``room`` is called before each.

    ``name``: what listens, for the one line that says that no connection can be accepted. ``listening`` stays the
    caller's.
    """

    def __init__(
        self,
        listening: socket.socket,
        came: Callable[[socket.socket, object], None],
        *,
        name: str,
        room: Callable[[], None] = lambda: None,
    ) -> None:
        self._listening, self._came, self._name, self._room = listening, came, name, room
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._said_at = -SAY_AGAIN_S
        listening.setblocking(False)
        self._open()

    def close(self) -> None:
        """Accept no more. May be called again."""
        self._pause()
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _open(self) -> None:
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _pause(self) -> None:
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening.fileno())

    def _accept(self) -> None:
        self._room()
        try:
            connection, address = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):  # it has disconnected
            return
        except OSError as error:
            now = self._loop.time()
            if now - self._said_at >= SAY_AGAIN_S:
                self._said_at = now
                LOG.warning("%s cannot accept connections just now: %s", self._name, error.strerror)
            self._pause()
            self._again = self._loop.call_later(PAUSE_S, self._open)
            return
        connection.setblocking(False)
        self._came(connection, address)
