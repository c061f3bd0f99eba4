"""How fast commits come, by what beats tell of the newest one. Pure."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.launcher.rules.checkpoints.attempt import Name

LEAST_S: Final = 1.0
"""Over so long it is measured at least."""


class Pace:
    """Of one world after the other; ``per_s`` is commits a second, 0 as long as nothing was measured."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._seen: tuple[float, Name] | None = None
        self._last: Name | None = None

    def saw(self, now: float, newest: Name | None) -> bool:
        """Take in the newest commit that is known (None: none); False if that says nothing of one before it.

        Between beats nothing is known: it is measured from the moment at which a commit was first seen to that of
        another, as its number alone may be as old as a beat.
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
