"""Which connection without authentication is closed when there are too many. Pure.

There is one agent on each host, and it authenticates at once. There may be many connections that
never do, but they come from few sources. The source with the most connections loses one first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

MAX_UNAUTHENTICATED: Final = 4096
"""Most connections without authentication at a time."""
MIN_UNAUTHENTICATED: Final = 64
"""The lowest limit on them, for a process that may open few files."""
FILES_PER_CONNECTION: Final = 16
"""One such connection is allowed for this many files that the process may open."""
SHARES: Final = 4
"""A source may keep 1/SHARES of all connections until the timeout. Its connections beyond that are closed first."""
MIN_TIME_S: Final = 0.25
"""Seconds that each connection gets when the limit is reached and no source has more than its share."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdmissionDecision(Generic[T]):
    """``out``: the connection to close, or None; ``wait``: accept none for now."""

    out: T | None = None
    wait: bool = False
    reason: str = ""


def max_unauthenticated(files: int) -> int:
    """The limit on connections without authentication for a process that may open ``files`` files."""
    return max(MIN_UNAUTHENTICATED, min(MAX_UNAUTHENTICATED, files // FILES_PER_CONNECTION))


class Unauthenticated(Generic[T]):
    """Connections without authentication by source, oldest first, with the time of each."""

    def __init__(self) -> None:
        self._by_source: dict[str, dict[T, float]] = {}
        self._source: dict[T, str] = {}
        self._kept: dict[T, int] = {}
        self.kept = 0
        """Bytes kept of all of them."""

    def __len__(self) -> int:
        return len(self._source)

    def add(self, who: T, source: str, now: float) -> None:
        """``source`` is empty for this user's own connections, which have no share limit."""
        self._by_source.setdefault(source, {})[who] = now
        self._source[who] = source

    def remove(self, who: T) -> bool:
        """False if it was not there."""
        source = self._source.pop(who, None)
        if source is None:
            return False
        self.kept -= self._kept.pop(who, 0)
        del self._by_source[source][who]
        if not self._by_source[source]:
            del self._by_source[source]
        return True

    def room(self, now: float, most: int) -> AdmissionDecision[T]:
        """Whether one more connection may be accepted; ``most`` is the limit."""
        if len(self._source) < most:
            return AdmissionDecision()
        source, others = max(self._by_source.items(), key=lambda each: len(each[1]))
        oldest, since = next(iter(others.items()))
        if source and len(others) > most // SHARES:
            return AdmissionDecision(oldest, reason="its source has too many connections without authentication")
        if now - since < MIN_TIME_S:
            return AdmissionDecision(wait=True)
        return AdmissionDecision(oldest, reason=f"no authentication within {MIN_TIME_S:g} s, and others wait")

    def count_bytes(self, who: T, size: int) -> None:
        """Count bytes received from a connection."""
        if who in self._source:
            self._kept[who] = self._kept.get(who, 0) + size
            self.kept += size

    def heaviest(self) -> T:
        """The connection with the most bytes kept; of several, the oldest."""
        return max(self._kept, key=self._kept.__getitem__)
