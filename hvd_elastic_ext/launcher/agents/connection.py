"""Connections of the control port, from accept to close."""

from __future__ import annotations

import asyncio
import resource
import select
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.connections import PAUSE_S, REQUEST_S
from hvd_elastic_ext.core.messages.wire import LauncherWire, WireError

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.agents.server import Control

MAX_UNPROVEN: Final = 1024
"""Connections of one address that have not proved that they have the job's key. Each keeps one first frame at most."""
MIN_UNPROVEN: Final = 64
"""The lowest limit on them, for a process that may open few files."""
FILES_PER_UNPROVEN: Final = 4
"""One of them is allowed for this many files that the process may open."""
SHORTEST_S: Final = 0.25
"""Seconds for the proof that each has although others wait. A full queue of new ones is let in within
:data:`REQUEST_S`."""
MAX_UNSENT: Final = 4 << 20
"""Bytes that an agent may leave unread before it is disconnected."""


class Session:
    """One connection, authenticated once it has a ``host``. ``over``: why it ends, or empty."""

    def __init__(self, control: Control, acceptor: Acceptor, connection: socket.socket, *, peer: str) -> None:
        self.host = self.agent = self.over = ""
        self.gone = asyncio.Event()
        self.acceptor = acceptor
        self._control = control
        self.peer = peer
        self._connection = connection
        self._wire = LauncherWire(control.key)
        self._unsent = bytearray()
        self._writing = False
        self._closing_when_read = False
        self._closing = False
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        control.poller.add(connection.fileno(), self._ready)
        self._timer = self._loop.call_later(REQUEST_S, self._too_late)
        self._write(self._wire.greeting)

    def send(self, order: Mapping[str, Any]) -> bool:
        """Send without waiting. False if this session has ended, or ends now because the agent does not read."""
        if self.over:
            return False
        if len(self._unsent) > MAX_UNSENT:
            self.hang_up("the agent does not read its orders")
            return False
        self._write(self._wire.seal(order))
        return not self.over

    def refuse(self, reason: str) -> None:
        """End the connection, and count the reason."""
        if not self.over:
            self._control.refuse(self.peer, reason)
            self.hang_up(reason)

    def hang_up(self, reason: str) -> None:
        """End at once. Closes in the next turn of the loop: this may be called while something is sent."""
        self.over = self.over or reason
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._close)

    def close_when_read(self, reason: str) -> None:
        """End once the other end has read everything and disconnects.

        Closing a socket with unread data would discard what was not delivered.
        """
        self.over = self.over or reason
        self._closing_when_read = True
        self._flush()

    def _ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if events & ~select.EPOLLOUT:
            self._read()

    def _read(self) -> None:
        if self._closing:
            return
        try:
            size = self._connection.recv_into(self._control.buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(str(error.strerror))
            return
        if size == 0:
            self._lost("the agent disconnected")
            return
        try:
            for message in self._wire.feed(bytes(memoryview(self._control.buffer)[:size])):
                self._take(message)
        except WireError as error:
            self.refuse(str(error))
        except Exception as error:  # noqa: BLE001 - a main loop
            # The rest of this read is lost. The agent reconnects and reports its state.
            self._control.log_defect(self, error)
            self.hang_up("a defect of hvd-elastic")

    def _take(self, message: Mapping[str, Any]) -> None:
        if self.over:
            return
        if self.host:
            self._control.receive(self, message)
        else:
            self._timer.cancel()
            self._control.admit(self, message)

    def _write(self, data: bytes) -> None:
        waiting = bool(self._unsent)
        self._unsent += data
        if not waiting:
            self._loop.call_soon(self._flush)  # together with all else for this agent in this turn

    def _flush(self) -> None:
        if self._closing:
            return
        try:
            while self._unsent:
                del self._unsent[: self._connection.send(self._unsent)]
            if self._closing_when_read:
                self._connection.shutdown(socket.SHUT_WR)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._lost(str(error.strerror))
        if self._writing != bool(self._unsent):
            self._writing = not self._writing
            self._control.poller.want_writing(self._connection.fileno(), wanted=self._writing)

    def _lost(self, reason: str) -> None:
        if not self.host:
            self.refuse("it disconnected before authentication")
        self.hang_up(reason)

    def _close(self) -> None:
        self._timer.cancel()
        self._control.poller.remove(self._connection.fileno())
        self._connection.close()
        self._control.disconnected(self)
        self.gone.set()

    def _too_late(self) -> None:
        self.refuse(f"no authentication within {REQUEST_S:g} s")


class Acceptor:
    """Accepts connections. A limited number at a time may be without authentication, each for :data:`REQUEST_S`. For
    one more, the oldest of them goes, but not within :data:`SHORTEST_S`. Further ones wait in the queue of the kernel.
    """

    def __init__(self, listener: socket.socket, control: Control) -> None:
        self._listener = listener
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._unproven: dict[Session, float] = {}
        """Connections without authentication and since when, the oldest first."""
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        listener.setblocking(False)
        self._open()

    def close(self) -> None:
        """Accept no more. May be repeated."""
        if not self._closed:
            self._stop_listening()
            self._closed = True
            self._listener.close()

    def authenticated_or_closed(self, session: Session) -> None:
        """``session`` is authenticated or closed: there is room for another."""
        if self._unproven.pop(session, None) is not None and self._again is not None:
            self._open()

    def _open(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _stop_listening(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _pause(self, seconds: float) -> None:
        self._stop_listening()
        self._again = self._loop.call_later(seconds, self._open)

    def _accept(self) -> None:
        """Accept one. (The loop calls again while there are more, so that others are served in between.)"""
        now = self._loop.time()
        if len(self._unproven) >= max_unproven(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
            oldest, since = next(iter(self._unproven.items()))
            if now - since < SHORTEST_S:
                self._pause(since + SHORTEST_S - now)
                return
            del self._unproven[oldest]
            oldest.refuse(f"no authentication within {SHORTEST_S:g} s, and others wait")
        try:
            connection, (address, *_) = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptors or no memory left: connections wait in the queue
            self._control.refuse("all new connections", str(error.strerror))
            self._pause(PAUSE_S)
            return
        try:
            _prepare(connection)
            session = Session(self._control, self, connection, peer=str(address))
        except OSError:  # it has disconnected, or no descriptor is left for it
            connection.close()
            return
        self._control.connections.add(session)
        self._unproven[session] = now


def max_unproven(files: int) -> int:
    """The limit on connections without authentication for a process that may open ``files`` files."""
    return max(MIN_UNPROVEN, min(MAX_UNPROVEN, files // FILES_PER_UNPROVEN))


def _prepare(connection: socket.socket) -> None:
    """Have the kernel send each answer at once, and close connections of machines that are gone.

    Otherwise an answer waits for the acknowledgement of the one before, which can take 40 ms, and a world's rendezvous
    has many in a row. The driver judges silent agents.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6}.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
