"""The port at which Prometheus reads the agent's figures, in the agent's own loop: it forks, and so has no threads."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.agent.slots.http import BadRequest, Reader, Request, response
from hvd_elastic_ext.agent.system.event_loop import EventLoop
from hvd_elastic_ext.agent.system.streams import heard, warn

MOST: Final = 8
"""Connections that are open together; further ones are closed at once."""
TIMEOUT_S: Final = 10.0
"""Seconds that a connection may take from its beginning to its end."""
PAUSE_S: Final = 1.0
"""Without a descriptor for a connection, the next one is accepted so much later: the loop would spin."""
PATH: Final = "/metrics"

_PORTS: Final = range(65536)

Answer = tuple[int, bytes, str]
"""HTTP status, body, type of the body."""


class _Client:
    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection, self.deadline = connection, deadline
        self.reader = Reader()
        self.answer = memoryview(b"")


class MetricsPort:
    """``address``: HOST:PORT, HOST being an address of this machine; ``answer`` makes the body for each request.

    Raises ``OSError`` and ``ValueError`` if it cannot listen there.
    """

    def __init__(self, loop: EventLoop, address: str, answer: Callable[[], Answer]) -> None:
        self.address = address
        self._loop, self._answer = loop, answer
        self._clients: dict[int, _Client] = {}
        self._told: set[type[Exception]] = set()
        host, _, port = address.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.inet_pton(family, host)  # a name could take a resolver's time
        if int(port) not in _PORTS:
            raise ValueError(port)
        self._listener = socket.create_server((host, int(port)), family=family, backlog=MOST)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._accepts_at: float | None = None
        loop.watch(self._listener.fileno(), self._accept)

    def due(self) -> float | None:
        """When ``tick`` is needed next; None if it is not."""
        moments = [client.deadline for client in self._clients.values()]
        return min(moments if self._accepts_at is None else [*moments, self._accepts_at], default=None)

    def tick(self) -> None:
        """Close connections that take too long."""
        if self._accepts_at is not None and self._loop.now() >= self._accepts_at:
            self._accepts_at = None
            self._loop.watch(self._listener.fileno(), self._accept)
        for client in list(self._clients.values()):
            if self._loop.now() >= client.deadline:
                self._hang_up(client)

    def close(self) -> None:
        """Close all connections, and give up the port."""
        for client in list(self._clients.values()):
            self._hang_up(client)
        self._loop.unwatch(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        if len(self._clients) >= MOST:  # the oldest goes: it may hold its place for nothing
            self._hang_up(next(iter(self._clients.values())))
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it has gone
            return
        except OSError:
            self._accepts_at = self._loop.now() + PAUSE_S
            self._loop.unwatch(self._listener.fileno())
            return
        connection.setblocking(False)
        client = self._clients[connection.fileno()] = _Client(connection, self._loop.now() + TIMEOUT_S)
        self._loop.watch(connection.fileno(), functools.partial(self._read, client))

    def _read(self, client: _Client) -> None:
        data = heard(client.connection)
        if data is None or (data and client.answer):
            return
        try:
            request = client.reader.feed(data) if data else None
        except BadRequest as error:
            self._reply(client, response(error.status))
            return
        if not data:
            self._hang_up(client)
        elif request is not None:
            self._reply(client, self._answered(request))

    def _answered(self, request: Request) -> bytes:
        if request.method != "GET":
            return response(405)
        if request.path.partition("?")[0] != PATH:
            return response(404)
        try:
            status, body, kind = self._answer()
        except Exception as error:  # noqa: BLE001 - a driver's, say: it is not worth the agent and the training here
            if type(error) not in self._told:
                self._told.add(type(error))
                warn(f"figures for Prometheus: {type(error).__name__}: {error}")
            return response(500)
        return response(status, body, kind)

    def _reply(self, client: _Client, answer: bytes) -> None:
        client.answer = memoryview(answer)
        self._write(client)

    def _write(self, client: _Client) -> None:
        try:
            client.answer = client.answer[client.connection.send(client.answer) :]
        except BlockingIOError:
            pass
        except OSError:
            client.answer = memoryview(b"")
        if client.answer:
            self._loop.write(client.connection.fileno(), functools.partial(self._write, client))
        else:
            self._hang_up(client)

    def _hang_up(self, client: _Client) -> None:
        descriptor = client.connection.fileno()
        self._loop.unwatch(descriptor)
        del self._clients[descriptor]
        client.connection.close()
