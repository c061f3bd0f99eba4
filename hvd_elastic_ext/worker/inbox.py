"""Host updates that have arrived and are not yet part of a world."""

from __future__ import annotations

import threading


class Inbox:
    """Counts notices instead of comparing their times.

    The launcher's list of hosts already holds a change when it sends the
    notice, so whoever received the notice *before* leaving the old world will
    find the change in the next one. Notices that arrive later, while the next
    world forms, may or may not be part of it: they are kept, at the price of
    one resize too many at worst.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived = 0
        self._covered = 0
        self._leaving = 0

    def put(self) -> None:
        """A notice came in; called from Horovod's notification thread."""
        with self._lock:
            self._arrived += 1

    @property
    def pending(self) -> int:
        """Notices no world has taken up yet."""
        with self._lock:
            return self._arrived - self._covered

    def leave(self) -> None:
        """This process is about to leave its world: what came so far will be in the next."""
        with self._lock:
            self._leaving = self._arrived

    def entered(self) -> None:
        """The next world has formed."""
        with self._lock:
            self._covered = max(self._covered, self._leaving)
