"""How fast a process trains by itself: the time of its steps, without what it waits for others in them.

Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hvd_elastic_ext.worker.process.link import Vitals

_WAIT = "horovod_torch_wait_and_clear"


class Pace:
    """Fills in ``vitals`` from hooks around every optimizer's steps and Horovod's waits. For one thread.

    ``say`` is told of the first step in each world: how long none was done before it, beyond the time of one.
    """

    def __init__(
        self,
        vitals: Vitals,
        now: Callable[[], float] = time.perf_counter,
        *,
        say: Callable[..., object] = lambda what, **fields: None,
    ) -> None:
        self._vitals = vitals
        self._now = now
        self._say = say
        self._usual: float | None = None
        self._under_way: list[int] = []
        self._last: float | None = None
        self._waited = 0.0

    def library(self, native: Any) -> Any:
        """Horovod's native library, its waits timed; all else is passed on."""
        return _Timed(native, self._timed)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """A step begins. Horovod's optimizer calls the step of the class that it wraps, with the same object."""
        self._vitals.progress += 1
        nested = 2 if hasattr(optimizer, "_allreduce_delay") else 1
        if not 0 < self._under_way.count(id(optimizer)) < nested:
            self._under_way.clear()  # the last one did not reach its end
        self._under_way.append(id(optimizer))

    def after_step(self, *_: Any) -> None:
        """A step has ended."""
        if self._under_way:
            self._under_way.pop()
        if self._under_way:
            return
        now = self._now()
        if self._vitals.fresh:
            self._vitals.fresh = False
            self._say("going_on", pause_s=self._pause(now))
        elif self._last is not None:
            self._usual = now - self._last
        if self._last is not None:
            self._vitals.step_s = round(max(0.0, now - self._last - self._waited), 6)
        self._last, self._waited = now, 0.0
        if not self._vitals.own_step:
            self._vitals.step += 1

    def _pause(self, now: float) -> float | None:
        """Seconds that this process did no step; None if it never did one."""
        if self._last is None:
            return None
        return round(max(0.0, now - self._last - (self._usual or 0.0)), 6)

    def _timed(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = self._now()
            self._vitals.waiting = True
            try:
                return wait(*args)
            finally:
                self._vitals.waiting = False
                self._waited += self._now() - began

        return timed


class _Timed:
    def __init__(self, native: Any, timed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._native = native
        self._make = timed

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._native, name)
        if name == _WAIT:
            found = self._make(found)
        setattr(self, name, found)  # so that the next call does not come by here
        return found
