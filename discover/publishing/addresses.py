"""The addresses that the daemon listens on, and how they are written. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hvd_elastic_ext.core.errors import UsageError

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
