"""Who of those that have not said yet who they are gives way to another. Pure.

Agents of the job come one from each host and say who they are within moments.
Connections that only stand there may be anybody's and any number, but come from
few places: where there is no room left, those of one place give way first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

MOST: Final = 4096
"""Strangers at a time."""
LEAST: Final = 64
"""And where few files may be open."""
PER_FILES: Final = 16
"""One for so many files that may be open."""
SHARES: Final = 4
"""One source may have one part in so many of the room for as long as it likes; what it has beyond gives way at once."""
MOMENT_S: Final = 0.25
"""How long each may take to say who it is where there is no room left and no source has more than its share."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verdict(Generic[T]):
    """``out`` is to give way, None if nobody has to; ``wait`` means that nobody may come in for now."""

    out: T | None = None
    wait: bool = False
    reason: str = ""


def most_for(files: int) -> int:
    """How many strangers there may be at a time where so many files may be open."""
    return max(LEAST, min(MOST, files // PER_FILES))


class Unauthenticated(Generic[T]):
    """Those who are there, by their sources, each with the moment at which it came: the oldest first."""

    def __init__(self) -> None:
        self._by_source: dict[str, dict[T, float]] = {}
        self._source: dict[T, str] = {}
        self._kept: dict[T, int] = {}
        self.kept = 0
        """Bytes that are kept of all of them."""

    def __len__(self) -> int:
        return len(self._source)

    @property
    def all(self) -> tuple[T, ...]:
        return tuple(self._source)

    def add(self, who: T, source: str, now: float) -> None:
        """``source`` is empty for those of our own user, who may come in any number."""
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

    def room(self, now: float, most: int) -> Verdict[T]:
        """Whether one more may come in where ``most`` may be there."""
        if len(self._source) < most:
            return Verdict()
        source, others = max(self._by_source.items(), key=lambda each: len(each[1]))
        oldest, since = next(iter(others.items()))
        if source and len(others) > most // SHARES:
            return Verdict(oldest, reason="more came from there than may stand there and say nothing")
        if now - since < MOMENT_S:
            return Verdict(wait=True)
        return Verdict(oldest, reason=f"it did not say who it is within {MOMENT_S:g} s, and others wait")

    def keep(self, who: T, size: int) -> None:
        """So many bytes more were heard of one of them."""
        if who in self._source:
            self._kept[who] = self._kept.get(who, 0) + size
            self.kept += size

    def heaviest(self) -> Verdict[T]:
        """Of whom the most is kept, and of those the oldest."""
        return Verdict(max(self._kept, key=self._kept.__getitem__), reason="it said much, and not who it is")
