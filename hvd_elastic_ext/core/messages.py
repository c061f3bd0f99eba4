"""What a launcher tells its workers about the hosts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostsUpdate:
    """The set of hosts is about to be another one.

    ``generation`` of the set; it only grows, so that a message that comes twice
    or late is known as such. ``deadline``: when hosts will be gone, in seconds of
    the receiver's monotonic clock; None if nothing hurries.
    """

    generation: int
    reason: str = ""
    deadline: float | None = None
