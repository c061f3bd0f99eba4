"""Which connection is closed when there are too many. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection
from typing import Protocol, TypeVar


class Held(Protocol):
    """An open connection: its source, and since when it is in its present state."""

    @property
    def source(self) -> str: ...

    @property
    def since(self) -> float: ...


H = TypeVar("H", bound=Held)


def choose_to_close(held: Collection[H]) -> H | None:
    """Return the oldest connection of the source that has the most; None if there is none.

    So a source with many connections loses its own, and a source with few requests is still served.
    """
    share = Counter(each.source for each in held)
    return max(held, key=lambda each: (share[each.source], -each.since), default=None)


def source_of(address: object) -> str:
    """Return a client's source: its host, or the network that one host has to itself.

    All of this machine is one source, as a process may choose among 127.0.0.0/8. So are the clients of a socket file,
    which all run as the same user.
    """
    if not isinstance(address, tuple):
        return ""
    host = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address):
        host = host.ipv4_mapped or host
    if host.is_loopback:
        return "loopback"
    return str(ipaddress.ip_network(f"{host}/64", strict=False)) if host.version == 6 else str(host)
