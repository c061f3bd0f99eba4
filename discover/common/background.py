"""Work beside the loop, in a thread of its own: what waits for an API server must hold up nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from discover.common.grace import Leave
from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

AFTER_A_DEFECT: Final = 60.0
"""Seconds."""


PATIENCE: Final = 0.1
"""Seconds that a request may take at the end."""

BROKEN_OFF: Final = 0.1
"""Seconds until one that was broken off has noticed."""


def _nothing() -> None:
    """There is nothing to be done at the end."""


class Aside:
    """Calls ``turn`` again and again, each time after as many seconds as it returned, or when it is poked.

    ``farewell`` is called at the end, in the same thread; ``interrupt`` from another one, if the thread has not ended
    ``patience`` seconds after it was told to.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float],
        *,
        clock: Clock,
        interrupt: Callable[[], None],
        farewell: Callable[[], None] = _nothing,
        patience: float = PATIENCE,
    ) -> None:
        self._name = name
        self._turn = turn
        self._clock = clock
        self._interrupt = interrupt
        self._farewell = farewell
        self._poke = threading.Event()
        self._leave = Leave(patience)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        """Let the next turn come at once."""
        self._poke.set()

    def hurry(self) -> None:
        """Begin to stop, and do not wait for it. May be repeated."""
        self._leave.begin()
        self._poke.set()

    def stop(self) -> None:
        """End the thread, or let it end with its request. May be repeated, and come before :meth:`start`."""
        self.hurry()
        if self._thread.is_alive():
            self._thread.join(self._leave.left)
            if self._thread.is_alive():
                self._interrupt()
                self._thread.join(BROKEN_OFF)

    def _run(self) -> None:
        while not self._leave.begun:
            self._poke.clear()
            try:
                pause = self._turn()
            except Exception:
                LOG.exception("%s: a defect of hvd-discover; going on with it later", self._name)
                pause = AFTER_A_DEFECT
            if not self._leave.begun:
                self._clock.wait(self._poke, pause)
        self._farewell()
