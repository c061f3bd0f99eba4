"""Limits for what strangers may do with a port, and which connection to close when there are too many. Pure.

Every listening socket of ours has a bound on its connections and these deadlines; docs/security.md has the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final, Protocol, TypeVar

MOST: Final = 64
"""Connections that a port keeps open. For one more, :func:`choose_to_close` names the one to close."""
REQUEST_S: Final = 5.0
"""Seconds for a whole request, or for a proof of who it is, from the start of a connection or the last answer on."""
ANSWER_S: Final = 15.0
"""Seconds for a client to receive a whole answer."""
PAUSE_S: Final = 1.0
"""Seconds until the next accept after one has failed for lack of descriptors: otherwise a loop would spin."""
SAY_AGAIN_S: Final = 60.0
"""Seconds between two lines about accepts that fail."""


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
    import ipaddress  # slow to load; agents need only the limits

    if not isinstance(address, tuple):
        return ""
    host = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if isinstance(host, ipaddress.IPv6Address):
        host = host.ipv4_mapped or host
    if host.is_loopback:
        return "loopback"
    return str(ipaddress.ip_network(f"{host}/64", strict=False)) if host.version == 6 else str(host)
