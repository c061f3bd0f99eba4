"""An HTTP server on the standard library, with a thread for each connection, for clients that nobody knows.

Connections, sizes and times are limited; see :mod:`hvd_elastic_ext.core.connections`. Nothing that a client sends is an
error of ours: broken requests and connections leave a line of debug output.
"""

from __future__ import annotations

import contextlib
import errno
import http.server
import io
import logging
import re
import socket
import socketserver
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from hvd_elastic_ext.core.connections import ANSWER_S, REQUEST_S, choose_to_close, source_of

LOG = logging.getLogger(__name__)

SHORTEST_HOLD: Final = 1.0
"""Seconds. If another client needs a connection, a long poll that has lasted this long is answered "nothing new". A
younger one is answered only if no connection is idle or older.
"""
MAX_HEAD: Final = 8192
"""Bytes of a request line and its headers."""
ROOM_TIMEOUT: Final = 0.2
"""Seconds to wait for the thread of a connection that is closed to make room."""
CLOSE_TIMEOUT: Final = 0.5
"""Seconds to wait for all threads at the end. One that is still alive then ends with the process."""


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP answer: its status, its body and the type of the body."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


class Answers(Protocol):
    """What a server asks, from any thread."""

    def answer(self, target: str, woken: threading.Event) -> Response | None:
        """Answer the request for ``target``, a path with its query; an answer that waits ends when ``woken`` is set.
        None closes the connection without an answer."""


_END = re.compile(rb"\r?\n\r?\n")


@dataclass(eq=False, slots=True)
class _Connection:
    """An open connection. ``since``: when its present phase began (monotonic seconds). ``asking``: the client sends a
    request, receives an answer or is idle; False while the server makes the answer, and after :meth:`hang_up`.
    """

    request: socket.socket
    source: str
    since: float = field(default_factory=time.monotonic)
    asking: bool = True
    woken: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None

    def turns(self, *, asking: bool) -> None:
        self.since, self.asking = time.monotonic(), asking

    def make_room(self) -> None:
        """End this connection soon. A long poll is answered first."""
        if self.asking:
            self.hang_up()
        self.since = time.monotonic()
        self.woken.set()

    def hang_up(self) -> None:
        """Make its thread end soon."""
        self.asking = False
        with contextlib.suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "hvd-elastic"
    sys_version = ""
    server: HttpServer

    def setup(self) -> None:
        super().setup()
        self.rfile.close()  # _head reads whole heads from the socket instead
        self.wfile.close()
        self._own = self.server.own(self.connection)
        self._more = False  # whether the client has sent more without waiting for the answer

    def handle_one_request(self) -> None:
        head = self._head()
        self.rfile, self.wfile = io.BytesIO(head), io.BytesIO()
        super().handle_one_request()  # without a head: the connection ends
        self.connection.settimeout(ANSWER_S)  # for the whole answer
        self.connection.sendall(self.wfile.getvalue())
        self._own.turns(asking=True)

    def _head(self) -> bytes:
        """Return the complete head of the next request. It is empty if the client closes the connection, takes too
        long or sends too many bytes.
        """
        until = self._own.since + REQUEST_S
        came = b""
        while (end := _END.search(came)) is None:
            left = until - time.monotonic()
            if left <= 0 or len(came) > MAX_HEAD:
                return b""
            self.connection.settimeout(left)
            try:
                more = self.connection.recv(4096)
            except TimeoutError:
                return b""
            if not more:
                return b""
            came += more
        self._more = end.end() < len(came)
        return came[: end.end()]

    def do_GET(self) -> None:
        self._own.turns(asking=False)
        answer = self.server.answers.answer(self.path, self._own.woken)
        self._own.turns(asking=True)
        if answer is None:
            self.close_connection = True
            return
        self._send(answer)

    do_HEAD = do_GET

    def _send(self, answer: Response) -> None:
        self.send_response(answer.status)
        self.send_header("Cache-Control", "no-store")
        if answer.status != 204:
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
        if answer.status == 503:
            self.send_header("Retry-After", "1")
        if self.server.crowded or self._more or self._own.woken.is_set():
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug("http: " + format, *args)


class HttpServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listens from construction; ``most``: connections at a time. For a further one, an idle or waiting one is closed;
    see :func:`choose_to_close`. Raises ``OSError`` if it cannot listen.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, address: Any, answers: Answers, *, most: int, family: int = socket.AF_INET) -> None:
        self.answers, self.address_family = answers, family
        self._most, self._free = most, threading.BoundedSemaphore(most)
        self._open: dict[socket.socket, _Connection] = {}
        super().__init__(address, _Handler)

    @property
    def crowded(self) -> bool:
        """Whether more than half of all connections are in use. Then each connection gets one answer only."""
        return len(self._open) > self._most // 2

    def own(self, request: socket.socket) -> _Connection:
        """Return the record of a connection."""
        return self._open[request]

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # without a pause, the server would try again at once
                self._make_room()
                time.sleep(ROOM_TIMEOUT)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._make_room()
            if not self._free.acquire(timeout=ROOM_TIMEOUT):
                with contextlib.suppress(OSError):
                    request.setblocking(False)
                    request.send(
                        b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )
                self.shutdown_request(request)
                return
        self._open[request] = _Connection(request, source_of(client_address))
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open[request].thread = threading.current_thread()
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def hang_up(self) -> None:
        """Close every connection, and wait for their threads. Call this when no more connections are accepted."""
        held = list(self._open.values())
        for connection in held:
            connection.hang_up()
        until = time.monotonic() + CLOSE_TIMEOUT
        for connection in held:
            if connection.thread is not None:
                connection.thread.join(max(0.0, until - time.monotonic()))

    def _make_room(self) -> None:
        """Close a connection that is idle or has waited for :data:`SHORTEST_HOLD`; if there is none, any."""
        now, held = time.monotonic(), list(self._open.values())
        idle = [each for each in held if each.asking or now - each.since >= SHORTEST_HOLD]
        if leaving := choose_to_close(idle or held):
            leaving.make_room()

    def _forget(self, request: socket.socket) -> None:
        del self._open[request]
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        LOG.debug("http: a connection broke", exc_info=True)
