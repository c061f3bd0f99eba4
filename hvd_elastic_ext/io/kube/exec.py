"""A WebSocket to the API server's exec, for a command in a pod. Loads the official client for its credentials.

Every call may block, for as long as :class:`StreamTimeouts` says. Call them in threads, not in the loop.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import websocket
from websocket import ABNF

from hvd_elastic_ext.core.clock import Clock, SystemClock
from hvd_elastic_ext.io.kube import pods
from hvd_elastic_ext.io.kube.access import SOCKET_OPTIONS, Access, Endpoint, Refused, Unanswered, Unreadable, read_pod
from hvd_elastic_ext.io.kube.pods import NotRun, Pod

_PIECE: Final = 32 << 10
_CLOSE: Final = 255
"""The channel on which v5 reports that another channel has ended."""


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """In seconds. ``connect``: timeout of a connection. ``answer``: longest time without a byte while one is expected.

    ``ping``: time without data after which the server is pinged: load balancers before it close connections that are
    quiet for 20 to 350 s. ``unanswered``: a number, not seconds: so many pings in a row without an answer end the
    connection. A pause of this process does not count. ``keepalive``: time between inputs of no bytes: servers do not
    count pings and their answers as traffic, and close what is quiet for four hours. ``keep``: how long credentials
    that were read are used again, unless they are refused. So many pods can start together without a read for each.
    """

    connect: float = 10.0
    answer: float = 30.0
    ping: float = 10.0
    unanswered: int = 5
    keepalive: float = 1800.0
    keep: float = 5.0


class _TimedOut(NotRun):
    """Nothing came within the time."""


class Unauthorized(NotRun):
    """The server refuses these credentials, or refuses them now."""


@dataclass(frozen=True, slots=True)
class _Credentials:
    """Credentials as they were read, and when."""

    configuration: Any
    endpoint: Endpoint
    namespace: str
    at: float


class Cluster:
    """An API server. Credentials are read again every few seconds, if there are commands: tokens last for an hour."""

    def __init__(self, access: Access, *, pace: StreamTimeouts = StreamTimeouts(), clock: Clock | None = None) -> None:
        self._access = access
        self._pace = pace
        self._clock = clock or SystemClock()
        self._reading = threading.Lock()
        self._kept: _Credentials | None = None

    def open(self, pod: Pod, words: Sequence[str]) -> WebSocketStream:
        """Run ``words`` in the pod's default container. Raises :class:`NotRun`."""
        began = self._clock.mono()
        while True:
            known = self._credentials()
            try:
                return self._run(known, pod, words)
            except Unauthorized:
                if self._kept is known:
                    self._kept = None
                if known.at >= began:  # otherwise there may be newer ones
                    raise

    def _credentials(self) -> _Credentials:
        """Raises :class:`NotRun`."""
        # One at a time: the client keeps the files that it makes from a kubeconfig in one table. It may have to run a
        # program for the credentials, which may hang.
        if not self._reading.acquire(timeout=self._pace.answer):
            waited = f"what reads them has not ended for {self._pace.answer:g} s"
            raise NotRun(f"credentials cannot be read: {waited}")
        try:
            kept = self._kept
            if kept is None or self._clock.mono() - kept.at >= self._pace.keep:
                configuration = self._access.configuration()
                endpoint, space = Endpoint.of(configuration), self._access.namespace
                self._kept = kept = _Credentials(configuration, endpoint, space, self._clock.mono())
            return kept
        except Unreadable as error:
            raise NotRun(str(error)) from None
        finally:
            self._reading.release()

    def _run(self, known: _Credentials, pod: Pod, words: Sequence[str]) -> WebSocketStream:
        endpoint, space = known.endpoint, pod.namespace or known.namespace
        times = (self._pace.connect, self._pace.answer)
        try:
            container = pods.container_of(read_pod(known.configuration, space, pod.name, timeout=times))
        except Unanswered as error:
            raise NotRun(f"no answer from {endpoint.url}: {error}") from None
        except Refused as error:
            raise _refused(error.code, error.body) from None
        except ValueError as error:
            raise NotRun(f"pod {space}/{pod.name}: {error}") from None
        return connected(endpoint, pods.exec_path(space, pod.name, container, words), pace=self._pace)


class WebSocketStream:
    """See :class:`hvd_elastic_ext.launcher.agents.transports.pod_exec.Stream`."""

    def __init__(self, made: Any, pace: StreamTimeouts) -> None:
        self._made = made
        self._pace = pace
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
        """Ping a silent server. Raises :class:`NotRun` also when too many pings in a row are not answered."""
        self._made.settimeout(self._pace.ping)
        while True:
            try:
                received = self.take()
            except _TimedOut:
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
        if not ready and time.monotonic() - self._heard_at >= self._pace.ping * (1 + self._unanswered):
            self._ping()
        return self._made.sock in ready, source in ready

    def take(self) -> tuple[tuple[int, bytes], ...] | None:
        """Read one message: the data in it, with its channel; None at the end. Raises :class:`NotRun`."""
        with self._stream_errors("was lost"):
            try:
                opcode, data = self._made.recv_data(control_frame=True)
            except websocket.WebSocketTimeoutException:
                raise _TimedOut("the connection to the pod was lost: it sends no data") from None
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
        if self._unanswered >= self._pace.unanswered:
            why = f"{self._unanswered} pings were not answered"
            raise NotRun(f"the connection to the pod was lost: {why}")
        self._unanswered += 1
        with self._stream_errors("was lost"):
            self._made.ping()
            now = time.monotonic()
            if now - self._kept_alive_at >= self._pace.keepalive:
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
            raise NotRun(f"the connection to the pod {what}: {_reason(error)}") from None


def connected(endpoint: Endpoint, path: str, *, pace: StreamTimeouts) -> WebSocketStream:
    """Open a WebSocket for the request in ``path``. Raises :class:`NotRun`."""
    made: Any = websocket.WebSocket(sslopt=_tls(endpoint), sockopt=list(SOCKET_OPTIONS))
    try:
        made.connect(
            endpoint.url.replace("http", "ws", 1) + path,
            header=[f"{name}: {value}" for name, value in endpoint.headers.items()],
            subprotocols=list(pods.PROTOCOLS),
            timeout=pace.answer,
            redirect_limit=0,  # the token must not go to another server
            **_proxied(endpoint),
        )
    except websocket.WebSocketBadStatusException as error:
        raise _refused(error.status_code, error.resp_body or b"") from None
    except websocket.WebSocketTimeoutException:
        raise NotRun(f"no answer from {endpoint.url}: it sends no data for {pace.answer:g} s") from None
    except (websocket.WebSocketException, OSError, ValueError) as error:
        raise NotRun(f"no answer from {endpoint.url}: {_reason(error)}") from None
    stream = WebSocketStream(made, pace)
    if (status := made.getstatus()) != HTTPStatus.SWITCHING_PROTOCOLS:  # old versions connect on a redirect
        stream.close()
        raise _refused(status or 0, b"")
    return stream


def _refused(code: int, body: bytes) -> NotRun:
    return (Unauthorized if code == HTTPStatus.UNAUTHORIZED else NotRun)(pods.refusal(code, body))


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
