"""Work beside the loop, in a thread of its own: what waits for an API server must hold up nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.core.clock import Clock

LOG = logging.getLogger("hvd-discover")

AFTER_A_DEFECT: Final = 60.0
"""Seconds."""


def _nothing() -> None:
    """There is nothing to be done at the end."""


class Aside:
    """Calls ``turn`` again and again, each time after as many seconds as it returned, or when it is poked.

    ``farewell`` is called at the end, in the same thread; ``interrupt`` from another one, if the thread does not end.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float],
        *,
        clock: Clock,
        interrupt: Callable[[], None],
        farewell: Callable[[], None] = _nothing,
    ) -> None:
        self._name = name
        self._turn = turn
        self._clock = clock
        self._interrupt = interrupt
        self._farewell = farewell
        self._poke = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def poke(self) -> None:
        """Let the next turn come at once."""
        self._poke.set()

    def stop(self, patience: float = 0.1) -> None:
        """End the thread, or let it end with its request; wait for it so many seconds at most.

        May be repeated, and come before :meth:`start`.
        """
        self._stopping = True
        self._poke.set()
        if self._thread.is_alive():
            self._thread.join(patience)
            if self._thread.is_alive():
                self._interrupt()
                self._thread.join(0.1)

    def _run(self) -> None:
        while not self._stopping:
            self._poke.clear()
            try:
                pause = self._turn()
            except Exception:
                LOG.exception("%s: a defect of hvd-discover; going on with it later", self._name)
                pause = AFTER_A_DEFECT
            if not self._stopping:
                self._clock.wait(self._poke, pause)
        self._farewell()
