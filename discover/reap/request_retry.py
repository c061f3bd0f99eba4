"""Decides when to send failed requests again, and logs why they failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from discover.watch.policy import LONGEST_PAUSE, Backoff
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.io.kube.errors import ApiError

LOG = logging.getLogger("hvd-discover")

RECHECK_RIGHT: Final = 2.0
"""Seconds. If a right is missing that existed before, the request is sent again after so long, before the right counts
as missing. An API server that has just started knows no roles for about a second.
"""

FORBIDDEN_PAUSE: Final = 60.0
"""Seconds after a forbidden request. By then a right, the room in a quota or a webhook's answer may have changed."""


class RequestRetry:
    """``what`` begins each log line. ``manifest``: the file that gives the right. ``draw`` returns a random number from
    [0, 1).
    """

    def __init__(self, what: str, *, manifest: str, clock: Clock, draw: Callable[[], float]) -> None:
        self._what = what
        self._remedy = f"; hvd-elastic manifest {manifest.removesuffix('.yaml')} gives the right"
        self._clock = clock
        self._draw = draw
        self._backoff = Backoff()
        self._not_before = 0.0
        self._problem = ""
        self._allowed = False

    def due(self, now: float) -> bool:
        """Whether a request may be sent at ``now`` (monotonic seconds), because the last pause is over."""
        return now >= self._not_before

    def succeeded(self) -> None:
        """Record that a request has succeeded: the right exists, and the next problem is logged even if it is the
        same.
        """
        self._problem, self._allowed = "", True

    def clear_problem(self) -> None:
        """Log the next problem even if it is the same as the last."""
        self._problem = ""

    def wait(self, pause: float, problem: str, *, line: str = "", level: int = logging.WARNING) -> None:
        """Send no request for ``pause`` seconds. Log ``line``, or else ``problem``, once until a request succeeds."""
        self._not_before = self._clock.mono() + pause
        if self._problem != problem:
            self._problem = problem
            LOG.log(level, "%s: %s", self._what, line or problem)

    def failed(self, error: ApiError, *, forbidden: bool) -> None:
        """Record a failure, and choose the pause. ``forbidden``: the server refuses the same request until something
        changes in the cluster.
        """
        lacks_right = error.lacks_right
        if self._allowed and lacks_right:
            self._allowed, self._not_before = False, self._clock.mono() + RECHECK_RIGHT
            return
        self._backoff, pause = self._backoff.failed(self._clock.mono(), self._draw())
        if forbidden:
            remedy = self._remedy if lacks_right else ""
            self.wait(FORBIDDEN_PAUSE, remedy or "not allowed", line=f"{error}{remedy}")
        else:
            self.wait(max(pause, min(error.retry_after or 0.0, LONGEST_PAUSE)), str(error))
