"""A thread that processes events at its own speed: the launcher's loop never waits for it."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

MAX_QUEUED: Final = 10_000
"""Most items that wait; more are dropped."""
SLOW_S: Final = 30.0
"""Seconds with one item after which a line says so. A message to a webhook is tried for this long."""
CLOSE_S: Final = 5.0
"""Longest wait in seconds for the last items at the end of the job."""

Item = TypeVar("Item")


class Follower(Generic[Item]):
    """``take`` gets each item, in order, and ``end`` is called after the last one, both in the thread.

    ``name``: the option or variable that requested it. ``take`` returns the problem, "" after a success, None if there
    was nothing to do. A problem is logged once, and again after a success. The same holds for an error that it raises,
    so an item that a library refuses does not affect the next ones.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[Item], str | None],
        *,
        end: Callable[[], None] = lambda: None,
        room: int = MAX_QUEUED,
    ) -> None:
        self._name, self._take, self._end = name, take, end
        self._queue: queue.Queue[Item | None] = queue.Queue(room)
        self._left_out = 0
        """Number of items dropped since the queue was full."""
        self._failing = self._slow = False
        self._taking_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Queue an item. Never waits."""
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            if not self._left_out:
                log.warning("%s does not keep up: what happens now is left out there", self._name)
            self._left_out += 1
        else:
            if self._left_out:
                log.warning("%s keeps up again: %d events are left out there", self._name, self._left_out)
            self._left_out = 0
        since = self._taking_since
        if not self._slow and since is not None and time.monotonic() - since > SLOW_S:
            self._slow = True
            log.warning("%s has not answered for %g s; the job goes on, and what happens now waits", self._name, SLOW_S)

    def close(self, within_s: float = CLOSE_S) -> None:
        """Process the waiting items for at most ``within_s`` seconds, and end."""
        until = time.monotonic() + within_s
        try:
            self._queue.put(None, timeout=within_s)
        except queue.Full:  # drop one item to make room for the mark of the end
            with contextlib.suppress(queue.Empty, queue.Full):
                self._queue.get_nowait()
                self._queue.put_nowait(None)
            return
        self._thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._taking_since = time.monotonic()
            try:
                problem = self._take(item)
            except Exception as error:  # noqa: BLE001
                problem = f"{type(error).__name__}: {error}"
            self._taking_since, self._slow = None, False
            if problem and not self._failing:
                log.warning("%s: %s; the job goes on", self._name, problem)
            if problem is not None:
                self._failing = bool(problem)
        try:
            self._end()
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("%s: %s: %s", self._name, type(error).__name__, error)
