"""What long commands do while an API server is away: they try again, with growing pauses, and say so once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.errors import ElasticError, UsageError
from hvd_elastic_ext.io.kube.errors import ApiError, Reason

LOG: Final = logging.getLogger(__name__)

AWAY_S: Final = 600.0
"""How long a server may be away: an upgrade of a control plane takes minutes."""
REFUSED_S: Final = 15.0
"""How long a server may refuse what it allowed before: one that has just started knows no roles for about a second."""
FIRST_S, LONGEST_S = 0.5, 10.0

Sleep = Callable[[float], None]
Say = Callable[[str], object]
T = TypeVar("T")


def limit_of(error: ElasticError) -> float:
    """Return for how many seconds requests that fail like this are repeated; 0 if trying again cannot help. Pure."""
    if not isinstance(error, ApiError):
        return 0.0
    if error.reason in (Reason.UNAUTHORIZED, Reason.FORBIDDEN):
        return REFUSED_S
    return AWAY_S if error.transient else 0.0


def next_pause(now: float, *, since: float, failures: int, limit: float) -> float | None:
    """Return the seconds until the next try, after ``failures`` in a row since ``since``; None if it was tried long
    enough. Pure."""
    left = since + limit - now
    return min(left, pause_after(failures, first=FIRST_S, longest=LONGEST_S)) if left > 0 else None


class Patience:
    """Repeats the requests of one command, from any thread, once one of them was answered: before that, an error may
    as well be a wrong address, or a missing right.

    ``say`` takes a line at the begin of an outage, one at its end, and what else a command that waits has to tell.
    """

    def __init__(
        self, *, say: Say = LOG.warning, sleep: Sleep = time.sleep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.say, self._sleep, self._clock = say, sleep, clock
        self._lock = threading.Lock()
        self._answered = False
        self._failures = 0
        self._limit = 0.0
        self._since = 0.0

    def of(self, ask: Callable[[], T]) -> T:
        """Return the answer to a request. Raises its error if that stays."""
        while True:
            try:
                answer = ask()
            except UsageError:  # an answer, too
                self.answered()
                raise
            except ElasticError as error:
                if not self.again(error):
                    raise
            else:
                self.answered()
                return answer

    def answered(self) -> None:
        """Note an answer."""
        with self._lock:
            away, self._failures, self._limit = self._failures, 0, 0.0
            self._answered = True
        if away:
            self.say("the API server answers again")

    def again(self, error: ElasticError, *, until: float | None = None) -> bool:
        """Sleep, and return True if the request is to be repeated then. ``until``: not after this time."""
        with self._lock:
            now, limit = self._clock(), limit_of(error)
            if not self._answered or not limit:
                return False
            first = not self._failures
            if limit != self._limit:
                self._since, self._limit = now, limit
            self._failures += 1
            pause = next_pause(now, since=self._since, failures=self._failures, limit=limit)
        if pause is not None and until is not None:
            pause = min(pause, until - now)
        if pause is None or pause <= 0:
            return False
        if first:
            self.say(f"{error}; trying again for up to {limit:g} s")
        self._sleep(pause)
        return True
