"""Host updates that have arrived and are not yet part of a world."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostsUpdate:
    """The set of hosts is about to be another one.

    ``generation`` of the set; it only grows, so that a message that comes twice
    or late is known as such. ``deadline``: when hosts will be gone, in seconds of
    the receiver's monotonic clock; None if no host has a deadline.
    """

    generation: int
    reason: str = ""
    deadline: float | None = None


class Inbox:
    """Counts notices instead of comparing their times.

    The launcher's list of hosts already holds a change when it sends the notice, so a process that received the notice
    *before* leaving the old world will find the change in the next one. Notices that arrive later, while the next world
    forms, may or may not be part of it: they are kept, at the price of one resize too many at worst.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived = 0
        self._covered = 0
        self._leaving = 0
        self._generation = -1
        self._deadline: float | None = None

    def put(self, update: HostsUpdate | None = None) -> None:
        """A notice came in; called from any thread. One of a generation that is known already is dropped.

        Horovod's own notices carry no generation: each of them counts.
        """
        with self._lock:
            if update is not None:
                if update.generation <= self._generation:
                    return
                self._generation = update.generation
                known = [at for at in (self._deadline, update.deadline) if at is not None]
                self._deadline = min(known, default=None)
            self._arrived += 1

    @property
    def deadline(self) -> float | None:
        """When the first of the pending notices' hosts will be gone; None if no host has a deadline."""
        with self._lock:
            return self._deadline

    @property
    def pending(self) -> int:
        """Notices no world has taken up yet."""
        with self._lock:
            return self._arrived - self._covered

    def leave(self) -> None:
        """This process is about to leave its world: what came so far will be in the next."""
        with self._lock:
            self._leaving = self._arrived

    def entered(self, generation: int | None = None) -> None:
        """The next world has formed; ``generation`` if its number is known: then notices of it are covered, too."""
        with self._lock:
            covered = self._generation >= 0 and generation is not None and self._generation <= generation
            self._covered = self._arrived if covered else max(self._covered, self._leaving)
            self._deadline = None if self._covered == self._arrived else self._deadline
