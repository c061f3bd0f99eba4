"""The port of a stand-in for a metadata service, and the faults that it can have."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Generic, TypeVar

from tests.support.metadata.service import Call, Reply, Service, call

S = TypeVar("S", bound=Service)
Misbehave = Callable[["_Handler"], None]

PAUSE_S = 0.05
"""Seconds between two bytes of a slow answer."""


class Faults:
    """What requests get in place of an answer, until :meth:`clear`."""

    def __init__(self) -> None:
        self._misbehave: Misbehave | None = None
        self.fired = 0

    def take(self) -> Misbehave | None:
        self.fired += self._misbehave is not None
        return self._misbehave

    def clear(self) -> None:
        self._misbehave = None

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        self._misbehave = lambda handler: handler.reply(Reply(status, body, headers))

    def raw(self, data: bytes) -> None:
        """Send these bytes, then close the connection."""
        self._misbehave = lambda handler: handler.say(data)

    def hang(self) -> None:
        """Accept requests, and never answer."""
        self._misbehave = lambda handler: handler.wait()

    def drip(self, data: bytes) -> None:
        """Send a byte at a time, for ever."""
        self._misbehave = lambda handler: handler.drip(data)


class MetadataServer(Generic[S]):
    """Answers for ``service`` within the context. ``calls``: all requests so far; ``ahead_s``: how far its clock is
    ahead of this machine's. The port is reserved from the start, and refuses connections before the context and after
    :meth:`refuse`. ``open_`` makes the listening socket, for example in another network than that of this process."""

    def __init__(
        self, service: S, *, at: tuple[str, int] = ("127.0.0.1", 0), open_: Callable[[], socket.socket] = socket.socket
    ) -> None:
        self.service = service
        self.faults = Faults()
        self.calls: list[Call] = []
        self.ahead_s = 0.0
        self._open = open_
        self._held = _bound(open_(), at)
        self._at: tuple[str, int] = self._held.getsockname()
        self.port = self._at[1]
        self.url = f"http://{at[0]}:{self.port}"
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> MetadataServer[S]:
        self.listen()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.refuse()
        self._held.close()

    def listen(self) -> None:
        """Answer until :meth:`refuse`."""
        self.service.closing.clear()
        self._server = _Server(self._at, _Handler, bind_and_activate=False)
        self._server.told = self  # type: ignore[attr-defined]
        self._server.socket.close()
        self._server.socket = _bound(self._open(), self._at)
        self._server.server_activate()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="metadata")
        self._thread.start()

    def refuse(self) -> None:
        """Refuse connections, as if no server existed."""
        if self._server is not None and self._thread is not None:
            self.service.closing.set()
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()  # waits for requests that are being answered
            self._server = self._thread = None

    def asked(self, path: str) -> list[Call]:
        return [each for each in list(self.calls) if each.path == path]


class _Server(ThreadingHTTPServer):
    daemon_threads = False


def _bound(made: socket.socket, at: tuple[str, int]) -> socket.socket:
    """Return the socket, bound to a port that no other process has. It refuses connections until it listens."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(at)
    return made


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10

    @property
    def _told(self) -> MetadataServer[Any]:
        found: MetadataServer[Any] = self.server.told  # type: ignore[attr-defined]
        return found

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = call(self.command, self.path, dict(self.headers.items()), body, self.client_address[1])
        self._told.calls.append(asked)
        misbehave = self._told.faults.take()
        if misbehave is None:
            self.reply(self._told.service.answer(asked))
        else:
            self.close_connection = True
            misbehave(self)

    do_GET = do_PUT = do_POST = do_DELETE = _serve

    def reply(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in {"Content-Type": "text/plain", **reply.headers}.items():
            self.send_header(name, value)
        data = reply.body.encode()
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def say(self, data: bytes) -> None:
        self.wfile.write(data)

    def wait(self) -> None:
        self._told.service.closing.wait(60)

    def drip(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # the client has given up
            while not self._told.service.closing.wait(PAUSE_S):
                for byte in data:
                    self.wfile.write(bytes([byte]))
                    self._told.service.closing.wait(PAUSE_S)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client has disconnected
            super().handle()

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate((time.time() if timestamp is None else timestamp) + self._told.ahead_s, usegmt=True)

    def log_message(self, format: str, *_: object) -> None:
        """Log nothing."""
