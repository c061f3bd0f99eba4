"""Decides which calls of ``commit()`` commit: all of them, or every n-th, as the launcher requests.

Ranks receive the request at different times, and must change at the same call. So the number that they agree on after
each step, whether the world ends, also contains the interval. Of several requests, the smallest n applies to all ranks.
Heartbeats carry the n in use, and the launcher repeats a request that did not reach a rank.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import torch

from hvd_elastic_ext.worker.process.link import Message, Status

MAX_INTERVAL: Final = 1 << 20
"""The longest interval, in calls."""
STOP: Final = 1 << 30
"""This bit of the agreed number ends the world. The lower bits hold ``MAX_INTERVAL + 1`` minus the interval, or 0."""
CALLS: Final = 8
"""Number of gaps between calls that are averaged. A gap that contains an evaluation is not a step time."""


class CommitSchedule:
    """Decides for one State which calls commit. The link's thread sets the interval, the main thread counts calls.

    ``named``: whether the launcher waits for a commit of a certain number. Meanwhile every call commits, so that this
    number comes soon.
    """

    def __init__(
        self,
        status: Status | None = None,
        *,
        named: Callable[[], bool] = lambda: False,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._status = status if status is not None else Status()
        self._named = named
        self._now = now
        self._asked: int | None = None
        self._every = 1
        self._from: float | None = None
        self._between: deque[float] = deque(maxlen=CALLS)
        self.left_out = 0
        """Calls since the last commit that did not commit."""

    def asked(self, message: Message) -> None:
        """Receive the interval that the launcher requests, in calls. Runs on the link's thread."""
        every = message.get("every")
        self._asked = min(every, MAX_INTERVAL) if type(every) is int and every > 0 else 1

    def wanted(self, *, stop: bool) -> int:
        """The number that this rank proposes. All ranks agree on the largest one."""
        every = 1 if self._named() else self._asked
        return (STOP if stop else 0) + (0 if every is None else MAX_INTERVAL + 1 - every)

    def agreed(self, number: int) -> bool:
        """Apply the agreed number. Return whether the world is to end."""
        if asked := number % STOP:
            self._set_interval(MAX_INTERVAL + 1 - asked)
        return number >= STOP

    def due(self) -> bool:
        """Return whether this call commits. Called once for each call of ``commit()``."""
        now = self._now()
        if self._from is not None:
            self._between.append(now - self._from)
            self._status.call_s = round(sum(self._between) / len(self._between), 6)
        self._from = now
        if self.left_out + 1 < self._every:
            self.left_out += 1
            return False
        return True

    def began(self) -> float:
        """Note the beginning of a commit. Return a value for :meth:`made`.

        This first waits for the device's pending work. The copies would wait for it too, but it is not part of the
        commit's time.
        """
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.current_stream().synchronize()
        return self._now()

    def made(self, began: float) -> None:
        """Note that a commit was made, by the interval or by an explicit call."""
        now = self._now()
        self._status.commit_s = round(now - began, 6)
        self.left_out = 0
        if self._from is not None:
            self._from = now

    def reset(self) -> None:
        """Note the end of the world: drop the counts. In the next world every call commits at first."""
        self.left_out, self._from = 0, None
        self._set_interval(1)

    def _set_interval(self, every: int) -> None:
        self._every = self._status.every = every
