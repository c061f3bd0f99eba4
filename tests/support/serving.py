"""An HTTP server of this machine, in a thread, for the time of a test; and a client of a socket file."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Serving(ThreadingHTTPServer):
    """Answers with each of ``codes`` once, then always with the last one; ``body``: of all answers. ``got``: paths and
    bodies of the requests."""

    def __init__(self, *codes: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.codes, self.body = list(codes), b""
        self.got: list[tuple[str, bytes]] = []
        self.headers: list[Any] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Serving

    def do_GET(self) -> None:
        codes = self.server.codes
        self.server.headers.append(self.headers)
        self.server.got.append((self.path, self.rfile.read(int(self.headers.get("Content-Length") or 0))))
        self.send_response(codes.pop(0) if len(codes) > 1 else codes[0])
        self.send_header("Location", "/elsewhere")  # for codes that redirect
        self.end_headers()
        self.wfile.write(self.server.body)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(*codes: int) -> Iterator[Serving]:
    with Serving(*codes) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection to the UNIX socket at a path."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=40)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
