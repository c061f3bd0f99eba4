"""Ports of the agent, in its loop: connections, limited in number and time, and one HTTP request for each.

Of HTTP/1.1 it knows what Horovod's clients and Prometheus use: one request for each connection, and its answer. The
library's server would need threads, which a process that forks cannot have.
"""

from __future__ import annotations

import functools
import socket
from typing import Final, Generic, NamedTuple, TypeVar

from hvd_elastic_ext.agent.descriptors import EventLoop, read_available
from hvd_elastic_ext.core.connections import ANSWER_S, PAUSE_S, REQUEST_S


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
        self._read(peer)  # most send at once


# --- one HTTP request ------------------------------------------------------------------------------------


MAX_HEAD: Final = 8 << 10
"""Bytes of the request line and the header fields."""
MAX_BODY: Final = 1 << 20
METHODS: Final = ("GET", "PUT", "DELETE")

_PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    507: "Insufficient Storage",
}


class BadRequest(ValueError):
    """An invalid request; ``status``: the HTTP status of the answer."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class Request(NamedTuple):
    """One request. ``path`` is as in its first line, escapes and query included."""

    method: str
    path: str
    body: bytes = b""


class Reader:
    """Assembles one request from the pieces that arrive."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._head: Request | None = None
        self._missing = 0

    def feed(self, data: bytes) -> Request | None:
        """The request, once it is whole. What follows it is ignored. Raises :class:`BadRequest`."""
        self._data += data
        if self._head is None:
            end = self._data.find(b"\r\n\r\n", 0, MAX_HEAD)
            if end < 0:
                if len(self._data) >= MAX_HEAD:
                    raise BadRequest(431, f"its head is longer than {MAX_HEAD} bytes")
                return None
            self._head, self._missing = _head(bytes(self._data[:end]))
            del self._data[: end + 4]
        if len(self._data) < self._missing:
            return None
        return self._head._replace(body=bytes(self._data[: self._missing]))


def _head(data: bytes) -> tuple[Request, int]:
    """The request without its body, and how long that is."""
    first, *lines = data.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not _is_path(words[1]):
        raise BadRequest(400, "its first line is not that of an HTTP request")
    if words[0] not in METHODS:
        raise BadRequest(405, "its method is not one of GET, PUT and DELETE")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "transfer-encoding" in fields:
        raise BadRequest(501, "its body has a transfer encoding")
    length = fields.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise BadRequest(400, "the length of its body is not a number")
    if len(length) > 10 or int(length) > MAX_BODY:
        raise BadRequest(413, f"its body is longer than {MAX_BODY} bytes")
    return Request(words[0], words[1]), int(length)


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isascii() and text.isprintable()


def response(status: int, body: bytes = b"", kind: str = "") -> bytes:
    """An answer, after which the connection ends. ``kind``: the type of its body."""
    phrase = _PHRASES.get(status, "Other")
    typed = f"Content-Type: {kind}\r\n" if kind else ""
    head = f"HTTP/1.1 {status} {phrase}\r\n{typed}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode("ascii") + body


# --- an HTTP port ----------------------------------------------------------------------------------------


class Client(Peer):
    """One connection. It has no deadline while its request is being answered."""

    def __init__(self, number: int, connection: socket.socket, deadline: float) -> None:
        super().__init__(number, connection, deadline)
        self.reader = Reader()
        self.asked = False
        self.answer = memoryview(b"")


class HttpPort(Acceptor[Client]):
    """A port that answers one HTTP request for each connection. ``listener`` is closed with it."""

    def __init__(self, loop: EventLoop, listener: socket.socket, *, most: int, replaces_oldest: bool = False) -> None:
        super().__init__(loop, listener, most=most, replaces_oldest=replaces_oldest)
        self.port: int = listener.getsockname()[1]

    def close(self) -> None:
        """Disconnect all clients and give up the port."""
        super().close()
        self.hang_up_all()
        self._listener.close()

    def _asked(self, client: Client, request: Request) -> None:
        """Answer a request, now or later."""
        raise NotImplementedError

    def _report_problem(self, problem: str) -> None:
        """Called when a connection or request is refused."""

    def _reply(self, client: Client, answer: bytes) -> None:
        client.answer = memoryview(answer)
        client.deadline = self._loop.now() + ANSWER_S
        self._write(client)

    def _met(self, number: int, connection: socket.socket) -> Client:
        return Client(number, connection, self._loop.now() + REQUEST_S)

    def _failed(self, error: OSError) -> None:
        self._report_problem(f"accepts no connection just now: {error}")

    def _read(self, client: Client) -> None:
        data = read_available(client.connection)
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
            self._report_problem(f"refused a request: {error}")
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
