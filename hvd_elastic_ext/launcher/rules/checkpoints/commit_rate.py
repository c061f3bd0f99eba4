"""Commits a second, measured from the newest commit in heartbeats. Pure."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Name

LEAST_S: Final = 1.0
"""Shortest time over which it is measured."""


class Pace:
    """``per_s``: commits a second, 0 until something is measured."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._seen: tuple[float, Name] | None = None
        self._last: Name | None = None

    def saw(self, now: float, newest: Name | None) -> bool:
        """Take in the newest known commit (None: none). False if it cannot be compared with the one before.

        Measures from the first sight of one commit to that of another: between heartbeats nothing is known.
        """
        seen, is_fresh = self._seen, newest != self._last
        self._last = newest
        if newest is None or (seen is not None and seen[1][:2] != newest[:2]):
            self._seen = None if newest is None else (now, newest)
            return False
        if seen is None:
            self._seen = now, newest
        elif is_fresh and now - seen[0] >= LEAST_S:
            self.per_s = (newest[2] - seen[1][2]) / (now - seen[0])
            self._seen = now, newest
        return True
