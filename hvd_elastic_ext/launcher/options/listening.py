"""Addresses at which the launcher listens for clients other than agents."""

from __future__ import annotations

import ipaddress
from typing import Final, NamedTuple

from hvd_elastic_ext.core.errors import UsageError

LOOPBACK: Final = "127.0.0.1"
_HIGHEST: Final = 65535


class ListenAddress(NamedTuple):
    """``host``: an address of this machine. ``port``: 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def listen_address(text: str, *, where: str = "--metrics") -> ListenAddress:
    """Read ``[HOST:]PORT``; without a host it is this machine only. Raises :class:`UsageError`, one line."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not (port.isascii() and port.isdigit() and int(port) <= _HIGHEST):
        raise UsageError(f"{where} {text!r}: write [HOST:]PORT; 9464 for this machine only, 0.0.0.0:9464 for all")
    return ListenAddress(host, int(port))


def listen_address_of_hosts(text: str, *, where: str = "--agent-metrics") -> ListenAddress:
    """The same for every host. A name is refused: it may mean another address there, and a look-up takes time."""
    found = listen_address(text, where=where)
    try:
        ipaddress.ip_address(found.host)
    except ValueError:
        raise UsageError(f"{where} {text!r}: write an address, such as 0.0.0.0:9465 for all; no name") from None
    return found
