"""Sockets and threads: accepts connections, or refuses them if a test asks for that."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Final

Serve = Callable[[socket.socket], None]
Secure = Callable[[socket.socket], socket.socket | None]
Open = Callable[[], socket.socket]

HANDSHAKE_S: Final = 10.0


class Listener:
    """A port of 127.0.0.1. It stays bound while connections to it are refused."""

    def __init__(self, serve: Serve, secure: Secure, *, open_: Open = socket.socket) -> None:
        """``secure`` and then ``serve`` are called for every connection, in a thread of its own. ``secure`` returns the
        socket for ``serve``, or None to end the connection. They need not close it. ``open_`` makes the socket to
        listen on.
        """
        self._serve, self._secure, self._make = serve, secure, open_
        self._lock = threading.Lock()
        self._socket = _bound(self._make(), 0)
        self.port: int = self._socket.getsockname()[1]
        self._accepting: threading.Thread | None = None
        self._threads: set[threading.Thread] = set()
        self._open: set[socket.socket] = set()
        self._idle: set[threading.Thread] = set()  # between two requests
        self._cut: set[threading.Thread] = set()  # of connections that were reset: no further request is answered

    def listen(self) -> None:
        """Accept connections until :meth:`refuse`."""
        if self._accepting is not None:
            return
        self._socket.listen(256)
        self._accepting = threading.Thread(target=self._accept, args=(self._socket,), name="kube-accept")
        self._accepting.start()

    def refuse(self) -> None:
        """Refuse new connections; open ones continue."""
        if self._accepting is None:
            return
        old = self._socket
        old.shutdown(socket.SHUT_RDWR)  # this also ends accept()
        self._accepting.join()
        self._accepting = None
        self._socket = _bound(self._make(), self.port)  # bound but not listening: refuses, and keeps the port
        old.close()

    def drop(self) -> None:
        """Reset all open connections. Connections with a request end when their threads notice it."""
        with self._lock:
            for each in self._open:
                reset(each)
            threads = list(self._threads)
            self._cut |= self._threads
        for thread in threads:  # wait: otherwise a client could send its next request on an idle connection
            while thread in self._idle:
                thread.join(0.01)

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Mark that this thread answers a request. For ``serve``. Raises ``ConnectionResetError`` if its connection was
        reset meanwhile: the client may have sent the request before it noticed."""
        if threading.current_thread() in self._cut:
            raise ConnectionResetError
        self._idle.discard(threading.current_thread())
        try:
            yield
        finally:
            self._idle.add(threading.current_thread())

    def close(self) -> None:
        """Refuse new connections, reset open ones, and wait until all threads have ended."""
        self.refuse()
        self._socket.close()
        self.drop()
        while True:
            with self._lock:
                threads = list(self._threads)
                for each in self._open:
                    _wake(each)
            if not threads:
                return
            threads[0].join(0.5)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._run, args=(connection,), name="kube-connection")
            with self._lock:
                self._open.add(connection)
                self._threads.add(thread)
            thread.start()

    def _run(self, connection: socket.socket) -> None:
        secured = None
        try:
            secured = self._secure(connection)
            if secured is not None:
                with self._lock:
                    self._open.discard(connection)
                    self._open.add(secured)
                if _shaken(secured):
                    self._idle.add(threading.current_thread())
                    self._serve(secured)
        finally:
            with self._lock:
                self._open -= {connection, secured}
                self._threads.discard(threading.current_thread())
                self._cut.discard(threading.current_thread())
            for each in (secured, connection):
                if each is not None:
                    each.close()
            self._idle.discard(threading.current_thread())


def _bound(bound: socket.socket, port: int) -> socket.socket:
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def reset(connection: socket.socket) -> None:
    """End a connection at once on both sides: the peer gets a reset, and a thread here that reads wakes up."""
    with contextlib.suppress(OSError):
        # With a linger time of 0, close() sends RST. But only shutdown() wakes another thread that reads.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        _shut(connection, socket.SHUT_RD)


def _wake(connection: socket.socket) -> None:
    """Wake threads that read or write. This sends a FIN."""
    with contextlib.suppress(OSError):
        _shut(connection, socket.SHUT_RDWR)


def _shut(connection: socket.socket, how: int) -> None:
    # The method of an SSLSocket would drop its TLS state while another thread uses it.
    socket.socket.shutdown(connection, how)


def secured(connection: socket.socket, context: ssl.SSLContext | None) -> socket.socket | None:
    """Return the connection, with TLS if there is a context; None if the client has already gone."""
    if context is None:
        return connection
    try:
        return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
    except OSError:
        return None


def _shaken(connection: socket.socket) -> bool:
    """Do the handshake if the connection has TLS; return whether it has succeeded."""
    if not isinstance(connection, ssl.SSLSocket):
        return True
    connection.settimeout(HANDSHAKE_S)
    try:
        connection.do_handshake()
    except (OSError, ValueError):
        return False
    connection.settimeout(None)
    return True


def peer_gone(connection: socket.socket) -> bool:
    """Whether the client has closed the connection, as far as this is known without waiting."""
    try:
        readable, _, _ = select.select([connection], [], [], 0)
        if not readable:
            return False
        if isinstance(connection, ssl.SSLSocket):
            return connection.recv(1) == b""
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except ssl.SSLWantReadError:
        return False
    except (OSError, ValueError):
        return True
