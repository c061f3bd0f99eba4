"""Servers that answer something else than a server should, in threads, for the time of a test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

NOT_HTTP = b"\x1b[2JSSH-2.0-OpenSSH_9.2p1 Debian\r\n\r\n"
DEEP = b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000
ESCAPES = b"HTTP/1.1 503 \x1b[2J\x1b]0;owned\x07 Busy\r\nContent-Length: 0\r\n\r\n"
ENDLESS = b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (4 << 20)
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n1"
BAD_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
HEADERS = b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n"


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """The URL of a server that gives each connection to ``answer``, with an event that is set at the end."""
    over, threads = threading.Event(), list[threading.Thread]()

    def served(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(1 << 16)
            answer(connection, over)

    def accept() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=served, args=(connection,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            for each in (thread, *threads):
                each.join(60)


def says(data: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Answer with ``data``, and disconnect."""
    return lambda connection, _: connection.sendall(data)


def drips(data: bytes) -> Callable[[socket.socket, threading.Event], None]:
    """Send ``data`` once, and then a byte of a header from time to time, for ever."""

    def answer(connection: socket.socket, over: threading.Event) -> None:
        connection.sendall(data)
        while not over.wait(0.02):
            connection.sendall(b"x")

    return answer
