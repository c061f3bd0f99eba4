"""Host updates that have arrived and are not yet part of a world.

Without torch: every script under an agent that imports Horovod loads this.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostsUpdate:
    """The set of hosts is about to change."""

    generation: int
    """The number of the set. It only grows, which shows messages that come twice or late."""
    reason: str = ""
    deadline: float | None = None
    """When hosts will be gone, in seconds of the receiver's monotonic clock; None if no host has a deadline."""


class Inbox:
    """Counts notices instead of comparing their times.

    The launcher's list of hosts already contains a change when it sends the notice. So if a process receives the notice
    *before* it leaves the old world, the next world contains the change. If a notice arrives later, while the next
    world forms, that world may not contain the change. Such a notice is kept: at worst this causes one needless resize.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived = 0
        self._covered = 0
        self._leaving = 0
        self._generation = -1
        self._deadline: float | None = None

    def put(self, update: HostsUpdate | None = None) -> None:
        """Add a notice, from any thread. Drop it if its generation is known already.

        Horovod's own notices have no generation (None): each of them counts.
        """
        with self._lock:
            if update is not None:
                if update.generation <= self._generation:
                    return
                self._generation = update.generation
                deadlines = [at for at in (self._deadline, update.deadline) if at is not None]
                self._deadline = min(deadlines, default=None)
            self._arrived += 1

    @property
    def deadline(self) -> float | None:
        """When the first host of the pending notices will be gone; None if no host has a deadline."""
        with self._lock:
            return self._deadline

    @property
    def pending(self) -> int:
        """Number of notices that no world covers yet."""
        with self._lock:
            return self._arrived - self._covered

    def leave(self) -> None:
        """Note that this process is about to leave its world: the next one covers all notices so far."""
        with self._lock:
            self._leaving = self._arrived

    def entered(self, generation: int | None = None) -> None:
        """Note that the next world has formed. With its ``generation``, it covers all notices up to that number."""
        with self._lock:
            covered = self._generation >= 0 and generation is not None and self._generation <= generation
            self._covered = self._arrived if covered else max(self._covered, self._leaving)
            self._deadline = None if self._covered == self._arrived else self._deadline
