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
from hvd_elastic_ext.io.peers import is_trusted, owner, owner_lookup
from hvd_elastic_ext.launcher.agents.admission import Unauthenticated, max_unauthenticated

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.agents.server import Control

MAX_UNPROVEN: Final = 32 << 20
"""Bytes kept of all connections without authentication together."""
MAX_UNSENT: Final = 4 << 20
"""Bytes that an agent may leave unread before it is disconnected."""

_RETRY_S: Final = 0.02


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
        if not self.host:
            self.acceptor.count_bytes(self, size)
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
    """Accepts connections, a limited number without authentication at a time; many agents at once wait in the queue.

    Which of them are closed first: see :mod:`hvd_elastic_ext.launcher.agents.admission`.
    """

    def __init__(self, listener: socket.socket, control: Control) -> None:
        self._listener = listener
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._unauthenticated = Unauthenticated[Session]()
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
        if self._unauthenticated.remove(session) and self._again is not None:
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
        now, most = self._loop.time(), max_unauthenticated(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        decision = self._unauthenticated.room(now, most)
        if decision.wait:
            self._pause(_RETRY_S)
            return
        if decision.out is not None:
            self._close_unauthenticated(decision.out, decision.reason)
        try:
            connection, (address, *_) = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptors or no memory left: connections wait in the queue
            self._control.refuse("all new connections", str(error.strerror))
            self._pause(PAUSE_S)
            return
        peer, source = _source(connection, str(address))
        try:
            _notice_dead_peers(connection)
            session = Session(self._control, self, connection, peer=peer)
        except OSError:  # it has disconnected, or no descriptor is left for it
            connection.close()
            return
        self._control.connections.add(session)
        self._unauthenticated.add(session, source, now)

    def count_bytes(self, session: Session, size: int) -> None:
        """Count bytes that came before authentication."""
        self._unauthenticated.count_bytes(session, size)
        while self._unauthenticated.kept > MAX_UNPROVEN:
            self._close_unauthenticated(self._unauthenticated.heaviest(), "it sent much without authentication")

    def _close_unauthenticated(self, session: Session, reason: str) -> None:
        session.refuse(reason)
        self._unauthenticated.remove(session)


def _source(connection: socket.socket, address: str) -> tuple[str, str]:
    """Name and source of a connection's other end.

    Within this machine the source is the user, who has many addresses; empty for this user and root.
    """
    try:
        within = address.startswith("127.") or address == connection.getsockname()[0]
        way = owner_lookup() if within else None
    except OSError:  # it has disconnected, or no descriptor is left for a question
        way = None
    if way is None:
        return address, address
    uid = owner(connection, way)
    if is_trusted(uid):
        return address, ""
    return (address if uid is None else f"{address}, user {uid}"), f"user {uid}"


def _notice_dead_peers(connection: socket.socket) -> None:
    """Have the kernel close connections of machines that are gone. The driver judges silent agents."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6}.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
