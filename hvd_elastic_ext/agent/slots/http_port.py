"""A port in the agent's own loop, as the agent forks and so has no threads: each connection brings one request."""

from __future__ import annotations

import functools
import socket
from typing import Final

from hvd_elastic_ext.agent.slots.http import BadRequest, Reader, Request, response
from hvd_elastic_ext.agent.system.event_loop import EventLoop
from hvd_elastic_ext.agent.system.streams import heard

TIMEOUT_S: Final = 10.0
"""Seconds in which a client sends its request, and in which it reads the answer."""
PAUSE_S: Final = 1.0
"""Without a descriptor for a connection, the next one is accepted so much later: the loop would spin."""


class Client:
    """One connection; its ``number`` is unique within the port. No ``deadline``: its request is being answered."""

    def __init__(self, number: int, connection: socket.socket, deadline: float) -> None:
        self.number, self.connection = number, connection
        self.deadline: float | None = deadline
        self.reader = Reader()
        self.asked = False
        self.answer = memoryview(b"")


class HttpPort:
    """``listener`` is closed with the port. ``most``: connections that are open together.

    Further ones wait in the kernel's queue, or, with ``replaces_oldest``, take the place of the oldest.
    """

    def __init__(self, loop: EventLoop, listener: socket.socket, *, most: int, replaces_oldest: bool = False) -> None:
        self._loop, self._listener = loop, listener
        self._most, self._replaces_oldest = most, replaces_oldest
        self._clients: dict[int, Client] = {}
        self._count = 0
        self._paused_until: float | None = None
        listener.setblocking(False)
        self.port: int = listener.getsockname()[1]
        self._listen()

    def due(self) -> float | None:
        """When ``tick`` is needed next; None if it is not."""
        moments = [self._paused_until, *(client.deadline for client in self._clients.values())]
        return min((moment for moment in moments if moment is not None), default=None)

    def tick(self) -> None:
        """Disconnect clients that took too long."""
        now = self._loop.now()
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._listen()
        for client in list(self._clients.values()):
            if client.deadline is not None and now >= client.deadline:
                self._hang_up(client)

    def hang_up_all(self) -> None:
        """Disconnect all clients."""
        for client in list(self._clients.values()):
            self._hang_up(client)

    def close(self) -> None:
        """Disconnect all clients and give up the port."""
        self.hang_up_all()
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()

    # --- for whoever answers ------------------------------------------------------------------------

    def _admits(self, connection: socket.socket) -> bool:
        """Whether a new connection is served at all."""
        return True

    def _asked(self, client: Client, request: Request) -> None:
        """Answer a request, now or later."""
        raise NotImplementedError

    def _gone(self, client: Client) -> None:
        """A connection has ended."""

    def _told(self, problem: str) -> None:
        """Something was refused."""

    def _reply(self, client: Client, answer: bytes) -> None:
        client.answer = memoryview(answer)
        client.deadline = self._loop.now() + TIMEOUT_S
        self._write(client)

    def _hang_up(self, client: Client) -> None:
        self._loop.unwatch(client.connection.fileno())
        del self._clients[client.number]
        client.connection.close()
        self._gone(client)
        self._listen()

    # --- inside -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        has_room = self._replaces_oldest or len(self._clients) < self._most
        if has_room and self._paused_until is None:
            self._loop.watch(self._listener.fileno(), self._accept)
        else:
            self._loop.unwatch(self._listener.fileno())

    def _accept(self) -> None:
        if len(self._clients) >= self._most:  # it may hold its place for nothing
            self._hang_up(next(iter(self._clients.values())))
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has disconnected
            return
        except OSError as error:
            self._told(f"accepts no connection just now: {error}")
            self._paused_until = self._loop.now() + PAUSE_S
            self._listen()
            return
        if not self._admits(connection):
            connection.close()
            return
        connection.setblocking(False)
        self._count += 1
        client = self._clients[self._count] = Client(self._count, connection, self._loop.now() + TIMEOUT_S)
        self._loop.watch(connection.fileno(), functools.partial(self._read, client))
        self._listen()

    def _read(self, client: Client) -> None:
        data = heard(client.connection)
        if data is None:
            return
        if not data:
            self._hang_up(client)
        elif not client.asked and not client.answer:
            self._take(client, data)

    def _take(self, client: Client, data: bytes) -> None:
        try:
            request = client.reader.feed(data)
        except BadRequest as error:
            self._told(f"refused a request: {error}")
            self._reply(client, response(error.status))
            return
        if request is not None:
            client.asked, client.deadline = True, None
            self._asked(client, request)

    def _write(self, client: Client) -> None:
        try:
            sent = client.connection.send(client.answer)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(client.answer)
        client.answer = client.answer[sent:]
        if client.answer:
            self._loop.write(client.connection.fileno(), functools.partial(self._write, client))
        else:
            self._hang_up(client)
