"""Serves publications, probes and metrics over HTTP, on socket files and TCP addresses.

A launcher asks for ``/hosts`` with the number of the publication that it has, and is answered when there is a newer
one. So a change reaches it at once, and a launcher that was away gets the newest one and not those between.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from discover.metrics import CONTENT_TYPE, Metrics
from discover.publish.files import FileLock, OwnedByOther
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.core.publication import Publication, to_json
from hvd_elastic_ext.io.http_server import HttpServer, Response

# --- where it listens


LONGEST_SOCKET_PATH = 107
"""Most bytes of a Unix socket's path on Linux."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The absolute path of a socket file."""

    path: Path

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """One address of this machine. Port 0 lets the system choose a port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_listen(value: str) -> Address:
    """Parse ``unix:///path``, ``HOST:PORT`` or ``:PORT`` (on 127.0.0.1). Raises :class:`UsageError`."""
    if value.startswith("unix:"):
        path = value.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/") or "\0" in path:
            raise UsageError(f"--listen {value}: write unix:///absolute/path")
        if len(path.encode("utf-8", "surrogateescape")) > LONGEST_SOCKET_PATH:
            raise UsageError(
                f"--listen {value}: a socket path has at most {LONGEST_SOCKET_PATH} bytes; name a shorter one"
            )
        return UnixAddress(Path(path))
    host, colon, port = value.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError(f"--listen {value}: write unix:///path or HOST:PORT, the port being 0 to 65535")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise UsageError(f"--listen {value}: write an IPv6 address in brackets, as in [::1]:8080")
    return TcpAddress(host.strip("[]") or "127.0.0.1", int(port))


# --- what the probes say


LOOP_TIMEOUT = 10.0
"""After so many seconds without a turn of the loop, the daemon counts as stuck."""


class Health:
    """Only the loop writes; any thread may read. Each answer is ``(well, reason in one line)``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_at = clock.mono()
        self._started = False
        self._problem = "nothing published yet"

    def loop_turned(self) -> None:
        """Record that the loop has finished a turn."""
        self._turned_at = self._clock.mono()

    def report(self, *, published: bool, problem: str) -> None:
        """``published``: the last publication is in every place. ``problem``: why it may be outdated, or ""."""
        self._started, self._problem = self._started or published, problem

    def live(self) -> tuple[bool, str]:
        """Not well if the loop has not turned for more than :data:`LOOP_TIMEOUT` seconds."""
        silence = self._clock.mono() - self._turned_at
        if silence > LOOP_TIMEOUT:
            return False, f"the loop has not turned for {silence:.0f} s"
        return True, "alive"

    def started(self) -> tuple[bool, str]:
        """Well once a publication has reached every place."""
        return (True, "published") if self._started else (False, self._problem)

    def ready(self) -> tuple[bool, str]:
        """Well while the published hosts are not outdated."""
        problem = self._problem
        return (False, problem) if problem else (True, "fresh")


# --- the newest publication


@dataclass(frozen=True, slots=True)
class ReaderPosition:
    """The newest publication that a waiting reader knows: its sequence number and, if known, its run of the daemon
    (``source``).
    """

    sequence: int
    source: str | None = None

    def outdated_by(self, current: Publication) -> bool:
        """Whether ``current`` is newer than what this reader knows.

        A number that is higher than that of ``current`` comes from another run, so ``current`` is newer.
        """
        if self.source is not None and self.source != current.source:
            return True
        return self.sequence != current.sequence


class LatestPublication:
    """A publisher whose readers are threads of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Publication | None = None
        self._waiting: dict[threading.Event, ReaderPosition] = {}
        self._closed = False

    @property
    def current(self) -> Publication | None:
        """The newest publication; None before the first."""
        return self._current

    def publish(self, publication: Publication) -> None:
        """Replace the publication, and wake the readers that do not know it. Never fails."""
        with self._lock:
            if self._current != publication:
                self._current = publication
                self._wake(publication)

    def wait_newer(self, known: ReaderPosition, timeout: float, *, woken: threading.Event) -> Publication | None:
        """Wait for a publication that the reader does not know, and return it. Return None after ``timeout`` seconds
        or :meth:`close`. Setting ``woken`` ends the wait.
        """
        with self._lock:
            if self._closed:
                return None
            newer = self._newer(known)
            if newer is not None:
                return newer
            self._waiting[woken] = known
        woken.wait(timeout)
        with self._lock:
            self._waiting.pop(woken, None)
            return None if self._closed else self._newer(known)

    def close(self) -> None:
        """End all waits. They and all later ones return None at once."""
        with self._lock:
            self._closed = True
            for woken in self._waiting:
                woken.set()

    def _wake(self, publication: Publication) -> None:
        for woken, known in self._waiting.items():
            if known.outdated_by(publication):
                woken.set()

    def _newer(self, known: ReaderPosition) -> Publication | None:
        current = self._current
        return current if current is not None and known.outdated_by(current) else None


# --- the answers


HOLD = 30.0
"""Seconds after which a long poll gets the answer "nothing new" (204)."""


class Routes:
    """Answers requests, from any thread; ``hold`` is in seconds."""

    def __init__(self, board: LatestPublication, *, vitals: Health, metrics: Metrics, hold: float = HOLD) -> None:
        self._board = board
        self._metrics = metrics
        self._hold = hold
        self._closed = threading.Event()
        self._probes = {"/livez": vitals.live, "/startupz": vitals.started, "/readyz": vitals.ready}

    def answer(self, target: str, woken: threading.Event) -> Response | None:
        """Answer one request. A long poll waits for news, for ``hold`` seconds or until ``woken`` is set; after
        :meth:`close` it returns None.
        """
        path, query = _split(target)
        if path in self._probes:
            well, why = self._probes[path]()
            return Response(200 if well else 503, f"{why}\n".encode())
        if path == "/metrics":
            return Response(200, self._metrics.render(), CONTENT_TYPE)
        if path == "/hosts":
            return self._hosts(query, woken)
        return Response(404, b"there is /hosts /livez /startupz /readyz /metrics\n")

    def close(self) -> None:
        """End all long polls, and later ones at once, without an answer. May be called again."""
        self._closed.set()
        self._board.close()

    def _hosts(self, query: dict[str, str], woken: threading.Event) -> Response | None:
        if "after" not in query:
            current = self._board.current
            return Response(503, b"nothing published yet\n") if current is None else _document(current)
        after = query["after"]
        if not (after.isascii() and after.isdigit() and len(after) < 19):
            return Response(400, b"after= is the sequence number of the publication you have, 0 for none\n")
        known = ReaderPosition(int(after), query.get("source"))
        news = self._board.wait_newer(known, self._hold, woken=woken)
        if self._closed.is_set():
            return None
        return Response(204) if news is None else _document(news)


def _split(target: str) -> tuple[str, dict[str, str]]:
    try:
        parts = urlsplit(target)
        return parts.path, {key: values[-1] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
    except ValueError:
        return "", {}


def _document(publication: Publication) -> Response:
    return Response(200, f"{to_json(publication)}\n".encode(), "application/json")


# --- the sockets


MAX_CLIENTS = 512
"""Connections at a time. For a further one, an idle or waiting one is closed; see
:mod:`hvd_elastic_ext.io.http_server`."""


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

    def _bind(self, address: Address, routes: Routes) -> HttpServer:
        if isinstance(address, TcpAddress):
            family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
            return HttpServer((address.host, address.port), routes, most=MAX_CLIENTS, family=family)
        self._lock = FileLock(address.path)
        _clear(address.path)
        server = _UnixServer(str(address.path), routes, most=MAX_CLIENTS, family=socket.AF_UNIX)
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
        raise CannotListen(f"--listen unix://{path}: that is not a socket; name another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
    raise OwnedByOther(f"--listen unix://{path}: another process already serves it; stop that one or name another path")


class _UnixServer(HttpServer):
    allow_reuse_address = False

    def server_bind(self) -> None:
        # No client may connect before the mode is right. On Linux, bind gives the file the mode of the socket.
        # Not by the umask: it belongs to the whole process, and other threads make files meanwhile.
        os.fchmod(self.socket.fileno(), 0o600)
        super().server_bind()
