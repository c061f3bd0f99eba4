"""Commands in pods: they run on this machine, where a test says so, and their streams go over a WebSocket."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from tests.support import podapi
from tests.support.kube import statuses
from tests.support.kube.calls import Call
from tests.support.kube.resources import Key

Place = Callable[[Key, str, list[str]], list[str]]
"""From a pod, one of its containers and a command to the command that runs here."""


def here(pod: Key, container: str, command: list[str]) -> list[str]:
    """On this machine, as it is."""
    return command


class Execs:
    """``place`` is the tests' to set; ``commands``: what was run so far."""

    def __init__(self) -> None:
        self.place: Place = here
        self.commands: list[tuple[Key, str, list[str]]] = []
        self._lock = threading.Lock()
        self._sessions: set[podapi.Session] = set()

    def run(self, handler: BaseHTTPRequestHandler, call: Call, pod: Mapping[str, Any]) -> None:
        """Take over a connection until the command has ended. Raises ApiError before it has begun."""
        container = call.option("container") or pod["spec"]["containers"][0]["name"]
        known = [each["name"] for each in pod["spec"]["containers"]]
        if container not in known:
            raise statuses.bad_request(f"container {container} is not valid for pod {call.name}")
        if handler.headers.get("Upgrade", "").lower() != "websocket":
            raise statuses.bad_request("unable to upgrade: only WebSocket is spoken here")
        command = parse_qs(urlsplit(handler.path).query)["command"]
        self.commands.append((call.key, container, command))
        podapi.upgrade(handler)
        self._carry(podapi.Session(_shared(handler.connection), self._placed(call.key, container, command)))

    def stop(self) -> None:
        """End all commands that still run."""
        with self._lock:
            for each in self._sessions:
                each.kill()

    def _placed(self, key: Key, container: str, command: Sequence[str]) -> list[str]:
        return self.place(key, container, list(command))

    def _carry(self, session: podapi.Session) -> None:
        with self._lock:
            self._sessions.add(session)
        try:
            session.run()
        finally:
            with self._lock:
                self._sessions.discard(session)


def _shared(connection: socket.socket) -> socket.socket:
    """What two threads may use at once, one to read and one to write: plain sockets are that by themselves."""
    return cast(socket.socket, _Shared(connection)) if isinstance(connection, ssl.SSLSocket) else connection


class _Shared:
    """TLS that is never used by two threads at once, since no one waits while using it."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._lock = threading.Lock()

    def recv(self, size: int) -> bytes:
        while True:
            try:
                with self._lock:
                    return self._connection.recv(size)
            except ssl.SSLWantReadError:
                select.select([self._connection], [], [], 1.0)
            except ssl.SSLWantWriteError:
                select.select([], [self._connection], [], 1.0)

    def sendall(self, data: bytes) -> None:
        while data:
            try:
                with self._lock:
                    sent = self._connection.send(data)
            except ssl.SSLWantReadError:
                select.select([self._connection], [], [], 1.0)
            except ssl.SSLWantWriteError:
                select.select([], [self._connection], [], 1.0)
            else:
                data = data[sent:]
