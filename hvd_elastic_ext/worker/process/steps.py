"""Measures the speed of this process: step times, without the time of waits for other ranks.

Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from hvd_elastic_ext.worker.process.link import Status

_preparations: Final[list[None]] = []
"""One entry for each preparation under way."""


@contextmanager
def preparing() -> Iterator[None]:
    """Context in which an optimizer only makes its state: Horovod calls ``step()`` with gradients of 0 for that, before
    it broadcasts the state of a new optimizer. Such a call is not a step of training. For the main thread.
    """
    _preparations.append(None)
    try:
        yield
    finally:
        _preparations.pop()


def is_preparing() -> bool:
    """Whether a call of an optimizer's ``step()`` now only makes its state."""
    return bool(_preparations)


class StepTimer:
    """Fill in ``status`` from hooks around optimizer steps and Horovod's waits. For one thread.

    ``report`` reports the first step of each world, and the seconds without a step before it, less one usual step.
    ``on_step`` is called after each step as long as no State of ours counts steps.
    """

    def __init__(
        self,
        status: Status,
        now: Callable[[], float] = time.perf_counter,
        *,
        report: Callable[..., object] = lambda what, **fields: None,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._status = status
        self._now = now
        self._report = report
        self._on_step = on_step
        self._usual: float | None = None
        self._under_way: list[int] = []
        self._last: float | None = None
        self._waited = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context around a wait for other ranks."""
        began = self._now()
        self._status.waiting = True
        try:
            yield
        finally:
            self._status.waiting = False
            self._waited += self._now() - began

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """Note that a step begins. Horovod's optimizer calls the step of its wrapped class, with the same object."""
        if is_preparing():
            return
        self._status.progress += 1
        nested = 2 if hasattr(optimizer, "_allreduce_delay") else 1
        if not 0 < self._under_way.count(id(optimizer)) < nested:
            self._under_way.clear()  # the last step did not end
        self._under_way.append(id(optimizer))

    def after_step(self, *_: Any) -> None:
        """Note that a step has ended, and measure it."""
        if is_preparing():
            return
        if self._under_way:
            self._under_way.pop()
        if self._under_way:
            return
        now = self._now()
        if self._status.fresh:
            self._status.fresh = False
            self._report("first_step", pause_s=self._pause(now))
        elif self._last is not None:
            self._usual = now - self._last
        if self._last is not None:
            self._status.step_s = round(max(0.0, now - self._last - self._waited), 6)
        self._last, self._waited = now, 0.0
        self._status.stepped_at = round(now, 6)
        if not self._status.own_step:
            self._status.step += 1
            self._status.step_ended(now)
            self._on_step()

    def _pause(self, now: float) -> float | None:
        """Seconds without a step; None before the first step."""
        if self._last is None:
            return None
        return round(max(0.0, now - self._last - (self._usual or 0.0)), 6)
