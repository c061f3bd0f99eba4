"""Connections to a listener in the agent's loop, limited in number and time."""

from __future__ import annotations

import functools
import socket
from typing import Generic, TypeVar

from hvd_elastic_ext.agent.event_loop import EventLoop
from hvd_elastic_ext.core.connections import PAUSE_S


class Peer:
    """One connection; ``number`` is unique within its acceptor. ``deadline``: when to close it; None: no time limit."""

    def __init__(self, number: int, connection: socket.socket, deadline: float) -> None:
        self.number, self.connection = number, connection
        self.deadline: float | None = deadline


P = TypeVar("P", bound=Peer)


class Acceptor(Generic[P]):
    """Accepts connections, and closes those that take too long. Subclasses define their use.

    ``most``: connections that are open together. Further ones wait in the kernel's queue, or, with
    ``replaces_oldest``, take the place of the oldest.
    """

    def __init__(self, loop: EventLoop, listener: socket.socket, *, most: int, replaces_oldest: bool = False) -> None:
        self._loop, self._listener = loop, listener
        self._most, self._replaces_oldest = most, replaces_oldest
        self._peers: dict[int, P] = {}
        self._count = 0
        self._accepts = True
        self._paused_until: float | None = None
        listener.setblocking(False)
        self._listen()

    def due(self) -> float | None:
        """When ``tick`` is needed next; None if it is not needed."""
        moments = [self._paused_until, *(peer.deadline for peer in self._peers.values())]
        return min((moment for moment in moments if moment is not None), default=None)

    def tick(self) -> None:
        """Close connections that take too long; accept again when a pause is over."""
        now = self._loop.now()
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._listen()
        for peer in list(self._peers.values()):
            if peer.deadline is not None and now >= peer.deadline:
                self._hang_up(peer)

    def close(self) -> None:
        """Accept no more connections. Open ones stay open."""
        self._accepts, self._paused_until = False, None
        self._loop.unwatch(self._listener.fileno())

    def hang_up_all(self) -> None:
        """Close all connections."""
        for peer in list(self._peers.values()):
            self._hang_up(peer)

    # --- for subclasses -----------------------------------------------------------------------------

    def _admits(self, connection: socket.socket) -> bool:
        """Return whether to keep a new connection."""
        return True

    def _met(self, number: int, connection: socket.socket) -> P:
        """Called when a connection has been accepted."""
        raise NotImplementedError

    def _read(self, peer: P) -> None:
        """Called when there is data to read, or the end of the connection."""
        raise NotImplementedError

    def _gone(self, peer: P) -> None:
        """Called when a connection has ended."""

    def _failed(self, error: OSError) -> None:
        """Called when no connection can be accepted now."""

    def _hang_up(self, peer: P) -> None:
        self._loop.unwatch(peer.connection.fileno())
        del self._peers[peer.number]
        peer.connection.close()
        self._gone(peer)
        self._listen()

    # --- inside -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        if not self._accepts:  # the listener may be closed, too
            return
        has_room = self._replaces_oldest or len(self._peers) < self._most
        if has_room and self._paused_until is None:
            self._loop.watch(self._listener.fileno(), self._accept)
        else:
            self._loop.unwatch(self._listener.fileno())

    def _accept(self) -> None:
        if len(self._peers) >= self._most:  # the oldest connection may be idle
            self._hang_up(next(iter(self._peers.values())))
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has disconnected
            return
        except OSError as error:
            self._failed(error)
            self._paused_until = self._loop.now() + PAUSE_S
            self._listen()
            return
        if not self._admits(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._count += 1
        peer = self._peers[self._count] = self._met(self._count, connection)
        self._loop.watch(connection.fileno(), functools.partial(self._read, peer))
        self._listen()
