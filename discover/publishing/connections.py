"""Chooses which connection to close when there are too many. Pure."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection
from typing import Protocol, TypeVar


class Held(Protocol):
    """An open connection: its source, and when its present state began."""

    @property
    def source(self) -> str: ...

    @property
    def since(self) -> float: ...


H = TypeVar("H", bound=Held)


def choose_to_close(held: Collection[H]) -> H | None:
    """Return the oldest connection of the source that has the most; None if there is none.

    So a source with many connections loses one of its own, and the server still answers a source with few.
    """
    share = Counter(each.source for each in held)
    return max(held, key=lambda each: (share[each.source], -each.since), default=None)


def source_of(address: object) -> str:
    """Return a client's source: its IPv4 address, or the /64 network of its IPv6 address, which one host may own.

    All loopback addresses are one source, because a process may use any address of 127.0.0.0/8. All clients of a
    socket file are one source, because they run as the same user.
    """
    if not isinstance(address, tuple):
        return ""
    host = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address):
        host = host.ipv4_mapped or host
    if host.is_loopback:
        return "loopback"
    return str(ipaddress.ip_network(f"{host}/64", strict=False)) if host.version == 6 else str(host)
