"""Serves publications, probes and metrics over HTTP, on socket files and TCP addresses."""

from __future__ import annotations

import contextlib
import errno
import http.server
import io
import logging
import os
import re
import socket
import socketserver
import stat
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discover.publishing.addresses import Address, TcpAddress, UnixAddress
from discover.publishing.connections import choose_to_close, source_of
from discover.publishing.file_lock import FileLock, OwnedByOther
from discover.publishing.routes import Response, Routes
from hvd_elastic_ext.core.errors import Permanent

LOG = logging.getLogger("hvd-discover")

MAX_CLIENTS = 512
"""Connections at a time. For a further one, an idle or waiting one is closed; see :func:`choose_to_close`."""

SHORTEST_HOLD = 1.0
"""Seconds. If another client needs a connection, a long poll that has lasted this long is answered "nothing new". A
younger one is answered only if no connection is idle or older.
"""

REQUEST_TIMEOUT = 5.0
"""Seconds for a whole request, from the start of the connection or the last answer, even if bytes still arrive."""

MAX_HEAD = 8192
"""Bytes of a request line and its headers."""

ANSWER_TIMEOUT = 15.0
"""Seconds for a client to receive a whole answer."""

ROOM_TIMEOUT = 0.2
"""Seconds to wait for the thread of a connection that is closed to make room."""

CLOSE_TIMEOUT = 0.5
"""Seconds to wait for a connection's thread at the end. A thread that is still alive then ends with the process."""


class CannotListen(Permanent):
    """The server cannot listen on the address."""


class Server:
    """Owns its socket from construction, and serves it once started, with a thread for each connection.

    Close the routes before the server, because long polls hold connections.

    Raises :class:`CannotListen`, or :class:`OwnedByOther` if another daemon serves the socket file.
    """

    def __init__(self, address: Address, routes: Routes) -> None:
        self._lock: FileLock | None = None
        self._socket_file: tuple[Path, os.stat_result] | None = None
        try:
            self._server = self._bind(address, routes)
        except OSError as error:
            self._unlock()
            why = (error.strerror or str(error)).lower()
            raise CannotListen(f"--listen {address}: {why}; name another address") from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="http", daemon=True)

    @property
    def address(self) -> Address:
        """The address in use. For TCP port 0, it has the port that the system has chosen."""
        if isinstance(self._server, _UnixServer):
            return UnixAddress(Path(str(self._server.server_address)))
        host, port = self._server.server_address[:2]
        return TcpAddress(str(host), int(port))

    def start(self) -> None:
        """Start the thread that accepts connections. Call it once."""
        self._thread.start()

    def close(self) -> None:
        """Stop, and remove the socket file if it is still ours. May be called again."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.hang_up()
        self._server.server_close()
        self._remove_socket_file()
        self._unlock()

    def _bind(self, address: Address, routes: Routes) -> _Server:
        if isinstance(address, TcpAddress):
            kind = _Tcp6Server if ":" in address.host else _Server
            return kind((address.host, address.port), routes)
        self._lock = FileLock(address.path)
        _clear(address.path)
        server = _UnixServer(str(address.path), routes)
        self._socket_file = (address.path, address.path.stat())
        return server

    def _remove_socket_file(self) -> None:
        if self._socket_file is not None:
            path, made = self._socket_file
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), made):
                    path.unlink()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()


def servers_at(addresses: Iterable[Address], routes: Routes) -> list[Server]:
    """Return a server for each address. Raises :class:`CannotListen` or :class:`OwnedByOther` if one cannot be made,
    after closing the others.
    """
    made: list[Server] = []
    try:
        for address in addresses:
            made.append(Server(address, routes))
    except Permanent:
        for server in made:
            server.close()
        raise
    return made


def _clear(path: Path) -> None:
    """Remove the socket file of a server that has ended. Raises :class:`OwnedByOther` or :class:`CannotListen`."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"--listen unix://{path}: that is no socket; name another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise OwnedByOther(f"--listen unix://{path}: another process already serves it; stop that one or name another path")


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
    server_version = "hvd-discover"
    sys_version = ""
    server: _Server

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
        self.connection.settimeout(ANSWER_TIMEOUT)  # for the whole answer
        self.connection.sendall(self.wfile.getvalue())
        self._own.turns(asking=True)

    def _head(self) -> bytes:
        """Return the complete head of the next request. It is empty if the client closes the connection, takes too
        long or sends too many bytes.
        """
        until = self._own.since + REQUEST_TIMEOUT
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
        answer = self.server.routes.answer(self.path, self._own.woken)
        self._own.turns(asking=True)
        if answer is None:  # the daemon ends: close the connection without an answer
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


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 1024

    def __init__(self, address: Any, routes: Routes) -> None:
        self.routes = routes
        self._free = threading.BoundedSemaphore(MAX_CLIENTS)
        self._open: dict[socket.socket, _Connection] = {}
        super().__init__(address, _Handler)

    @property
    def crowded(self) -> bool:
        """Whether more than half of all connections are in use. Then each connection gets one answer only."""
        return len(self._open) > MAX_CLIENTS // 2

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
        for connection in list(self._open.values()):
            connection.hang_up()
            if connection.thread is not None:
                connection.thread.join(CLOSE_TIMEOUT)

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


class _UnixServer(_Server):
    address_family = socket.AF_UNIX
    allow_reuse_address = False

    def server_bind(self) -> None:
        # No client may connect before the mode is right. On Linux, bind gives the file the mode of the socket.
        # The umask is no way: it belongs to the whole process, and other threads make files meanwhile.
        os.fchmod(self.socket.fileno(), 0o600)
        super().server_bind()


class _Tcp6Server(_Server):
    address_family = socket.AF_INET6
