"""A command and the WebSocket with its streams: ``v5.channel.k8s.io``, or ``v4`` as before Kubernetes 1.30.

The first byte of each message is a channel: 0 to 2 for the command's standard streams, 3 for how it ended, 4 for the
size of a terminal. In v5, 255 ends the channel that the next byte names. As on a real server, this reads nothing, not
even a ping, while the command does not read its input; and only messages count for the idle time. There are no
terminals.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler
from typing import Any, Final, cast

V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LOOK_S = 0.05


def upgrade(handler: BaseHTTPRequestHandler, known: Sequence[str]) -> str | None:
    """Turn the connection into a WebSocket. Return the protocol: the client's first one in ``known``. If there is none,
    send the refusal of real servers and return None.
    """
    handler.close_connection = True
    offered = [word.strip() for word in handler.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    protocol = next((each for each in offered if each in known), None)
    if protocol is None:
        handler.send_response(403)
        handler.end_headers()
        handler.wfile.write(f"requested protocol(s) are not supported: {offered}; supports {list(known)}".encode())
        return None
    key = handler.headers["Sec-WebSocket-Key"].encode()
    handler.send_response(101)
    handler.send_header("Upgrade", "websocket")
    handler.send_header("Connection", "Upgrade")
    handler.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key + _MAGIC).digest()).decode())
    handler.send_header("Sec-WebSocket-Protocol", protocol)
    handler.end_headers()
    return protocol


class Session:
    """One connection and its command. The command may run longer than the connection, as in a container.

    ``idle_s``: seconds without a message after which the connection is cut. If ``silent`` is set, the session neither
    reads nor sends. ``pings``: how many pings came. ``sizes``: the sizes of the terminal that the client has sent.
    """

    def __init__(self, connection: socket.socket, protocol: str, *, idle_s: float | None) -> None:
        self.protocol = protocol
        self.pings = 0
        self.sizes: list[dict[str, int]] = []
        self.silent = threading.Event()
        self._raw = connection
        self._connection = _shared(connection)
        self._idle_s = idle_s
        self._lively_at = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._to_input: int | None = None

    def cut(self) -> None:
        """Break the connection, as a load balancer or the end of a server does."""
        self._over.set()
        with contextlib.suppress(OSError):
            # The method of an SSLSocket must not be used here: see web.py.
            socket.socket.shutdown(self._raw, socket.SHUT_RDWR)

    def kill(self) -> None:
        """Kill the command and its process group, if it still runs."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def refuse(self, why: str) -> None:
        """Send the answer that the command could not be run."""
        self._say(STDOUT, b"")
        status = {"metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500}
        self._finish({**status, "message": f"Internal error occurred: {why}"})

    def run(self, command: list[str]) -> None:
        """Run the command with its streams to its end, and send how it ended."""
        self._start(command)
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._say(STDOUT, b"")
        hearing = threading.Thread(target=self._hear, name="kube-exec-in")
        watching = threading.Thread(target=self._watch_idle, name="kube-exec-idle")
        outputs = ((STDOUT, process.stdout), (STDERR, process.stderr))
        ways = [threading.Thread(target=self._pass_on, args=(each, source.fileno())) for each, source in outputs]
        for thread in (hearing, watching, *ways):
            thread.start()
        for thread in ways:
            thread.join()
        code = process.wait()
        for _, source in outputs:
            source.close()
        self._finish(_outcome(code if code >= 0 else 128 - code))
        if self.protocol == V5:  # a server of v5 waits until the client closes; one of v4 does not
            hearing.join(10)
        self.cut()
        for thread in (hearing, watching):
            thread.join()

    def _start(self, command: list[str]) -> None:
        its_input, self._to_input = os.pipe()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=its_input, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        os.close(its_input)

    def _finish(self, status: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._say(ERROR, json.dumps(status).encode())
            self._send(_CLOSE, struct.pack(">H", 1000))

    def _pass_on(self, channel: int, source: int) -> None:
        while data := os.read(source, 1 << 15):
            with contextlib.suppress(OSError):
                self._say(channel, data)

    def _say(self, channel: int, data: bytes) -> None:
        self._lively_at = time.monotonic()
        self._send(_BINARY, bytes([channel]) + data)

    def _send(self, opcode: int, data: bytes) -> None:
        size = bytes([len(data)]) if len(data) < 126 else struct.pack(">BH", 126, len(data))
        self._hang()
        with self._lock:
            self._connection.sendall(bytes([0x80 | opcode]) + size + data)

    def _hang(self) -> None:
        while self.silent.is_set() and not self._over.wait(_LOOK_S):
            pass

    def _watch_idle(self) -> None:
        while not self._over.wait(_LOOK_S):
            if self._idle_s is not None and time.monotonic() - self._lively_at > self._idle_s:
                self.cut()

    def _hear(self) -> None:
        """Read messages until the connection ends. Then the command's input ends, too."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                opcode, data = self._frame()
                self._hang()
                if opcode == _PING:
                    self.pings += 1
                    self._send(_PONG, data)
                elif opcode == _CLOSE:
                    break
                elif opcode == _BINARY and data:
                    self._lively_at = time.monotonic()
                    self._take(data[0], data[1:])
        self._end_input()

    def _take(self, channel: int, data: bytes) -> None:
        if channel == CLOSE and self.protocol == V5 and data == bytes([STDIN]):
            self._end_input()
        elif channel == RESIZE:
            self.sizes.append(json.loads(data))
        elif channel == STDIN and self._to_input is not None:
            with contextlib.suppress(BrokenPipeError):
                while data:
                    data = data[os.write(self._to_input, data) :]

    def _end_input(self) -> None:
        descriptor, self._to_input = self._to_input, None
        if descriptor is not None:
            os.close(descriptor)

    def _frame(self) -> tuple[int, bytes]:
        head = self._read(2)
        size = head[1] & 0x7F
        if size >= 126:
            size = int.from_bytes(self._read(2 if size == 126 else 8), "big")
        assert head[1] & 0x80, "a client's frames are masked"
        mask = self._read(4)
        return head[0] & 0x0F, _unmasked(self._read(size), mask)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._connection.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data


def _unmasked(data: bytes, mask: bytes) -> bytes:
    keys = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(keys, "big")).to_bytes(len(data), "big")


def _outcome(code: int) -> dict[str, Any]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = {"causes": [{"reason": "ExitCode", "message": str(code)}]}
    message = f"command terminated with non-zero exit code: {code}"
    return {"metadata": {}, "status": "Failure", "message": message, "reason": "NonZeroExitCode", "details": causes}


def _shared(connection: socket.socket) -> socket.socket:
    """Return a connection that two threads may use at the same time, one to read and one to write. A plain socket needs
    no change for that.
    """
    return cast(socket.socket, _Shared(connection)) if isinstance(connection, ssl.SSLSocket) else connection


class _Shared:
    """A TLS connection that only one thread uses at a time. Threads wait for data without the lock."""

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
