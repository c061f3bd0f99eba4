"""Counts the requests of clients, so that tests can limit them."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """One request. ``at``: when it came, by ``time.monotonic``. ``code``: 401 if the user was refused, else 0."""

    at: float
    verb: str
    resource: str
    query: Mapping[str, str]
    user: str
    path: str
    code: int = 0


class Counts:
    """Counts of requests and answers. ``connections``: how many were accepted so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Set all counts to 0, and drop all requests."""
        with self._lock:
            self.connections = 0
            self._requests: Counter[tuple[str, str]] = Counter()
            self._codes: Counter[int] = Counter()
            self._seen: deque[Seen] = deque(maxlen=50_000)

    def connected(self) -> None:
        with self._lock:
            self.connections += 1

    def asked(self, seen: Seen) -> None:
        with self._lock:
            self._requests[seen.verb, seen.resource] += 1
            self._seen.append(seen)

    def answered(self, code: int) -> None:
        with self._lock:
            self._codes[code] += 1

    def of(self, verb: str = "", resource: str = "") -> int:
        """Return how many requests there were. "" stands for every verb or resource."""
        with self._lock:
            return sum(
                count for (each, what), count in self._requests.items() if verb in ("", each) and resource in ("", what)
            )

    def answers(self, code: int) -> int:
        """Return how many answers had this HTTP status."""
        with self._lock:
            return self._codes[code]

    def seen(self, verb: str = "", resource: str = "") -> list[Seen]:
        """Return the requests in order. Only the last 50,000 of all requests are kept."""
        with self._lock:
            return [each for each in self._seen if verb in ("", each.verb) and resource in ("", each.resource)]

    def last(self, verb: str, resource: str) -> Seen:
        return self.seen(verb, resource)[-1]


def now() -> float:
    return time.monotonic()
