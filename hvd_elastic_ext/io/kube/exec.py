"""Runs commands in pods: a WebSocket to the API server's exec. Loads the official client.

Every call may block, for as long as :class:`StreamTimeouts` says. Call them in threads, not in the loop.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import websocket
from websocket import ABNF

from hvd_elastic_ext.io.kube import pods
from hvd_elastic_ext.io.kube.access import SOCKET_OPTIONS, Endpoint
from hvd_elastic_ext.io.kube.client import Client
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.io.kube.paths import path_of

_PIECE: Final = 32 << 10
_CLOSE: Final = 255
"""The channel on which v5 reports that another channel has ended."""


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """Times in seconds."""

    answer: float = 30.0
    """Longest time to connect, and without a byte while one is expected."""
    ping: float = 10.0
    """Time without data after which the server is pinged: load balancers before it close connections that are quiet for
    20 to 350 s."""
    unanswered: int = 5
    """A number, not seconds: this many pings in a row without an answer end the connection. A pause of this process
    does not count."""
    keepalive: float = 1800.0
    """Time between inputs of no bytes: servers do not count pings and their answers as traffic, and close what is quiet
    for four hours."""


TIMEOUTS: Final = StreamTimeouts()


class WebSocketStream:
    """The streams of a command that runs. For one thread, except for ``cut``."""

    def __init__(self, made: Any, timeouts: StreamTimeouts) -> None:
        self._made = made
        self._timeouts = timeouts
        self._socket: socket.socket | None = made.sock
        self._kept_alive_at = self._heard_at = time.monotonic()
        self._unanswered = 0

    def send(self, data: bytes, *, channel: int = pods.STDIN) -> None:
        """In messages of at most 32 KiB; blocks until all are written."""
        with self._stream_errors("was lost while input was sent"):
            for start in range(0, len(data), _PIECE):
                self._made.send_binary(bytes([channel]) + data[start : start + _PIECE])

    def end_input(self) -> None:
        """Tell the command that no more input comes. Servers before 1.30 have no such message, and wait for more."""
        if self._made.getsubprotocol() == pods.PROTOCOLS[0]:
            with self._stream_errors("was lost while input was sent"):
                self._made.send_binary(bytes([_CLOSE, pods.STDIN]))

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """Ping a silent server. Raises :class:`ApiError` also when too many pings in a row are not answered."""
        self._made.settimeout(self._timeouts.ping)
        while True:
            try:
                received = self.take()
            except ApiError as error:
                if error.reason is not Reason.SILENT:
                    raise
                self._ping()
                continue
            if received is None:
                return
            yield from received

    def wait(self, source: int | None, seconds: float) -> tuple[bool, bool]:
        """Whether :meth:`take` has something to read, and whether ``source`` has. Pings a silent server: see
        :meth:`receive`."""
        reads = [each for each in (self._made.sock, source) if each is not None]
        with self._stream_errors("was lost"):
            if isinstance(self._made.sock, ssl.SSLSocket) and self._made.sock.pending():
                return True, False
            ready, _, _ = select.select(reads, [], [], seconds)
        if not ready and time.monotonic() - self._heard_at >= self._timeouts.ping * (1 + self._unanswered):
            self._ping()
        return self._made.sock in ready, source in ready

    def take(self) -> tuple[tuple[int, bytes], ...] | None:
        """Read one message: the data in it, with its channel; None at the end. Raises :class:`ApiError`."""
        with self._stream_errors("was lost"):
            try:
                opcode, data = self._made.recv_data(control_frame=True)
            except websocket.WebSocketTimeoutException:
                raise ApiError(Reason.SILENT, "the connection to the pod was lost: it has sent no data") from None
            except websocket.WebSocketConnectionClosedException:
                return None
        self._heard_at, self._unanswered = time.monotonic(), 0
        if opcode == ABNF.OPCODE_CLOSE:
            return None
        # A first message without content says that the command is being started.
        if opcode in (ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT) and len(data) > 1:
            return ((data[0], data[1:]),)
        return ()

    def _ping(self) -> None:
        if self._unanswered >= self._timeouts.unanswered:
            why = f"{self._unanswered} pings were not answered"
            raise ApiError(Reason.SILENT, f"the connection to the pod was lost: {why}")
        self._unanswered += 1
        with self._stream_errors("was lost"):
            self._made.ping()
            now = time.monotonic()
            if now - self._kept_alive_at >= self._timeouts.keepalive:
                self._made.send_binary(bytes([pods.STDIN]))
                self._kept_alive_at = now

    def cut(self) -> None:
        """Shut down the TCP connection, so that a thread that reads or writes returns; errors are ignored."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                # Neither TLS's method nor the library's: two threads must not use those at the same time.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket at once, without a close frame; errors are ignored."""
        with contextlib.suppress(OSError, websocket.WebSocketException):
            self._made.shutdown()

    @contextlib.contextmanager
    def _stream_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (websocket.WebSocketException, OSError, ValueError) as error:
            raise ApiError(Reason.CUT, f"the connection to the pod {what}: {_reason(error)}") from None


def run(
    client: Client,
    pod: str,
    words: Sequence[str],
    *,
    namespace: str = "",
    container: str = "",
    stdin: bool = True,
    tty: bool = False,
    timeouts: StreamTimeouts = TIMEOUTS,
) -> WebSocketStream:
    """Run ``words`` in a pod. Raises :class:`ApiError`, also for a pod in which nothing can run any more.

    ``namespace``: "" is that of the credentials. ``container``: "" is the pod's default one. ``stdin``, ``tty``:
    whether the command has an input, and a terminal.
    """
    space = namespace or client.namespace
    if not container:
        body = client.request("GET", path_of("v1", "pods", space, pod))
        try:
            container = pods.container_of(body)
        except ValueError as error:
            raise ApiError(Reason.CONFLICT, f"pod {space}/{pod}: {error}") from None
    target = pods.exec_path(space, pod, container, words, stdin=stdin, tty=tty)
    return client.authorized(lambda session: connected(client, session.endpoint, target, timeouts=timeouts))


def connected(
    client: Client, endpoint: Endpoint, target: str, *, timeouts: StreamTimeouts = TIMEOUTS
) -> WebSocketStream:
    """Open a WebSocket for the request ``target``, a path with its query. Raises :class:`ApiError`."""
    made: Any = websocket.WebSocket(sslopt=_tls(endpoint), sockopt=list(SOCKET_OPTIONS))
    try:
        made.connect(
            endpoint.url.replace("http", "ws", 1) + target,
            header=[f"{name}: {value}" for name, value in endpoint.headers.items()],
            subprotocols=list(pods.PROTOCOLS),
            timeout=timeouts.answer,
            redirect_limit=0,  # the token must not go to another server
            **_proxied(endpoint),
        )
    except websocket.WebSocketBadStatusException as error:
        raise ApiError.of_answer(error.status_code, error.resp_body or b"", remedies=client.remedies) from None
    except websocket.WebSocketTimeoutException:
        raise client.unanswered(endpoint, Reason.SILENT, f"it has sent no data for {timeouts.answer:g} s") from None
    except (websocket.WebSocketException, OSError, ValueError) as error:
        raise client.unanswered(endpoint, Reason.UNREACHABLE, _reason(error)) from None
    stream = WebSocketStream(made, timeouts)
    if (status := made.getstatus()) != HTTPStatus.SWITCHING_PROTOCOLS:  # old versions connect on a redirect
        stream.close()
        raise ApiError.of_answer(status or 0, b"", remedies=client.remedies)
    return stream


def _tls(endpoint: Endpoint) -> dict[str, Any]:
    paths = {"ca_certs": endpoint.authority, "certfile": endpoint.certificate, "keyfile": endpoint.key}
    known = {name: path for name, path in (*paths.items(), ("server_hostname", endpoint.server_name)) if path}
    checks = ssl.CERT_REQUIRED if endpoint.verify else ssl.CERT_NONE
    return {**known, "cert_reqs": checks, "check_hostname": endpoint.verify and endpoint.check_name}


def _proxied(endpoint: Endpoint) -> dict[str, Any]:
    if not endpoint.proxy:
        return {"http_no_proxy": ["*"]}  # the client chooses the proxy, not this library
    proxy = urlsplit(endpoint.proxy)
    auth = {"http_proxy_auth": (proxy.username, proxy.password or "")} if proxy.username else {}
    way = {"http_proxy_host": proxy.hostname, "http_proxy_port": proxy.port or 80}
    return {**way, **auth, "http_no_proxy": list(endpoint.no_proxy)}


def _reason(error: BaseException) -> str:
    below = error.args[0] if error.args and isinstance(error.args[0], BaseException) else error
    text = (isinstance(below, OSError) and below.strerror) or str(below) or type(below).__name__
    return " ".join(text.split())[:300]
