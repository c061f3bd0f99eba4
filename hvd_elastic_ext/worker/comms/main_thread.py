"""Whether the main thread waits for other ranks, where only a look at it can tell.

It waits if it has been in the same place since an earlier look, a place where ranks wait for one another, and if
nothing has been computed since. Which place and whose computation that is, each library says (``torch_waits``,
``tensorflow_waits``).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

WINDOW_S: Final = 0.5
"""Shortest time in which nothing may have been computed. A clock tick is 0.01 s."""
LITTLE: Final = 0.05
"""Highest share of a processor that counts as nothing: threads wake up and look."""


class MainThreadWaits:
    """Looks at the main thread of this process, at each heartbeat.

    ``where``: the place of a thread by its innermost frame; None for one where nobody waits. ``computed_s``: seconds
    that were computed so far by whoever would compute at that place; it gets the place, and the main thread's native
    number.
    """

    def __init__(
        self,
        where: Callable[[FrameType | None], str | None],
        computed_s: Callable[[str, int | None], float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where = where
        self._computed_s = computed_s
        self._now = now
        self._since: tuple[str, float, float] | None = None
        """Where the main thread was, when that was looked at, and what had been computed then."""
        self._waits = False

    def look(self) -> bool:
        """Whether the main thread waits for other ranks, and has done so since an earlier look."""
        main = threading.main_thread()
        if threading.current_thread() is main:
            return False
        where = self._where(sys._current_frames().get(main.ident or 0))
        try:
            computed_s = None if where is None else self._computed_s(where, main.native_id)
        except OSError:  # no descriptor is left
            where = computed_s = None
        if where is None or computed_s is None:
            self._since, self._waits = None, False
            return False
        now, since = self._now(), self._since
        if since is None or since[0] != where:
            self._since, self._waits = (where, now, computed_s), False
        elif (passed := now - since[1]) >= WINDOW_S:
            self._waits = computed_s - since[2] <= LITTLE * passed
            self._since = where, now, computed_s
        return self._waits


def seconds_of(path: Path) -> float:
    """Seconds that a process or thread has computed, by its ``stat`` file. Raises ``OSError``."""
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
