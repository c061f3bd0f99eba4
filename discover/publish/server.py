"""Serves publications, probes and metrics over HTTP, on socket files and TCP addresses."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterable
from pathlib import Path

from discover.publishing.addresses import Address, TcpAddress, UnixAddress
from discover.publishing.file_lock import FileLock, OwnedByOther
from discover.publishing.routes import Routes
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.io.http_server import HttpServer

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
        # The umask is no way: it belongs to the whole process, and other threads make files meanwhile.
        os.fchmod(self.socket.fileno(), 0o600)
        super().server_bind()
