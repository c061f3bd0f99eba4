"""Steps of this process: which calls of an optimizer's ``step()`` are steps of training, and how long they take.

Horovod's optimizer is a generated subclass whose ``step`` calls the original ``step``, and torch hooks both: one step
of the user calls the hooks twice. Horovod also calls ``step()`` only to make an optimizer's state. Neither counts.

Standard library only.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from hvd_elastic_ext.worker.process.link import Status


class _Preparations(threading.local):
    under_way = 0


_preparations: Final = _Preparations()
"""Those of each thread: in a test, ranks are threads, and one that averages must not hide the steps of another."""


@contextmanager
def preparing() -> Iterator[None]:
    """Context in which an optimizer only makes its state: Horovod calls ``step()`` with gradients of 0 for that, before
    it broadcasts the state of a new optimizer. Such a call, by this thread, is not a step of training.
    """
    _preparations.under_way += 1
    try:
        yield
    finally:
        _preparations.under_way -= 1


def is_preparing() -> bool:
    """Whether a call of an optimizer's ``step()`` now only makes its state."""
    return _preparations.under_way > 0


SAMPLE_S: Final = 0.02
"""Seconds between two measured steps under DDP, where measuring has a cost. A heartbeat takes the last one."""


class StepTimer:
    """Fill in ``status`` from hooks around optimizer steps and waits for other ranks.

    For one thread; :meth:`counted` is also called by that of the heartbeats.

    ``report`` reports the first step of each world, and the seconds without a step before it, less one usual step.
    ``on_step`` is called with the number of steps that have ended, as long as no State of ours counts steps.
    """

    def __init__(
        self,
        status: Status,
        now: Callable[[], float] = time.perf_counter,
        *,
        report: Callable[..., object] = lambda what, **fields: None,
        on_step: Callable[[int], None] = lambda steps: None,
    ) -> None:
        self._status = status
        self._now = now
        self._report = report
        self._on_step = on_step
        self._usual: float | None = None
        self._under_way: list[int] = []
        self._last: float | None = None
        self._waited = 0.0
        self._waited_to = -math.inf
        """The end of the last wait."""
        self._measured_at = -math.inf
        self._left_out = False
        """Whether waits of the step under way are not measured."""
        self.all_waits_s = 0.0
        """Seconds of all waits that were measured. It only grows."""
        self.unseen = 0
        """Backward passes that may have waited without being measured. It only grows."""
        self.mark: Callable[[], object] = lambda: None
        """Called where a wait begins and where it ends. Only a device that works by itself can measure its part."""

    def now(self) -> float:
        """Seconds of the clock by which steps are measured."""
        return self._now()

    def measures(self) -> bool:
        """Whether the waits of the step under way are to be measured. If not, its length does not count."""
        self._left_out = self._now() + (self._usual or 0.0) < self._measured_at + SAMPLE_S
        self.unseen += self._left_out
        return not self._left_out

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context around a wait for other ranks. One within another counts once."""
        if self._status.waiting:
            yield
            return
        self.mark()
        began = self._now()
        self._status.waiting = True
        try:
            yield
        finally:
            self._status.waiting = False
            self.waited(began)
            self.mark()

    def waited(self, began: float) -> None:
        """Note a wait for other ranks that began at that time and ends now. One that another overlaps counts once."""
        now = self._now()
        waited = now - min(now, max(began, self._waited_to))
        self._waited += waited
        self.all_waits_s += waited
        self._waited_to = now

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
        if self._last is not None and not self._left_out:
            self._status.step_s = round(max(0.0, now - self._last - self._waited), 6)
            self._measured_at = now
        self._last, self._waited, self._left_out = now, 0.0, False
        self._status.stepped_at = round(now, 6)
        if not self._status.own_step:
            self._status.step += 1
            self._status.step_ended(now)
            self._on_step(1)

    def counted(self, steps: int) -> None:
        """Note steps that were found by an optimizer's own count, and not as they ended."""
        now = self._now()
        self._status.progress += 1
        if self._status.fresh:
            self._status.fresh = False
            self._report("first_step", pause_s=self._pause(now))
        elif self._last is not None:
            self._usual = (now - self._last) / steps
        self._last = now
        self._status.stepped_at = round(now, 6)
        if not self._status.own_step:
            self._status.step += steps
            self._on_step(steps)
        self._status.step_ended(now, steps=steps)

    def _pause(self, now: float) -> float | None:
        """Seconds without a step; None before the first step."""
        if self._last is None:
            return None
        return round(max(0.0, now - self._last - (self._usual or 0.0)), 6)


_COUNTER: Final = "_hvd_elastic_counter"


class StepCount:
    """Number of steps that lead to the present state: of an optimizer, else calls of ``commit()``.

    Of nested calls of ``step`` only the outermost one counts. ``on_step`` is called after each; ``counted`` after a
    :meth:`look` that has found steps, with their number.
    """

    def __init__(self, on_step: Callable[[], None], *, counted: Callable[[int], None] = lambda steps: None) -> None:
        self.done = 0
        self._on_step = on_step
        self._counted = counted
        self._depth = 0
        self._hooks: list[Any] = []
        self.own_count: Callable[[], int] | None = None
        """The optimizer's own count, if it has one in place of hooks. It may also change without a step."""
        self._seen = 0
        """That count when it was last looked at."""

    def watch(self, optimizer: Any) -> None:
        """Count the steps of ``optimizer`` from now on, and of no other: a torch optimizer's as they end, a Keras
        optimizer's at each :meth:`look`. Its ``step`` may be inside a graph, which Python does not see."""
        self.forget()
        if optimizer is not None and not hasattr(optimizer, "register_step_pre_hook"):
            self.own_count = partial(steps_of, optimizer)
        elif optimizer is not None:
            # The optimizer must not keep a replaced State alive, and that State must stop counting.
            earlier = getattr(optimizer, _COUNTER, None)
            if earlier is not None:
                earlier.forget()
            setattr(optimizer, _COUNTER, self)
            self._hooks = [
                optimizer.register_step_pre_hook(self._before),
                optimizer.register_step_post_hook(self._after),
            ]
        self.between()

    def forget(self) -> None:
        """Count no optimizer's steps."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self.own_count = [], None

    def look(self, *, tell: bool = True) -> None:
        """Count the steps that the optimizer has counted itself since the last look. ``tell``: whether to report
        them."""
        if self.own_count is None:
            return
        before, self._seen = self._seen, self.own_count()
        new = self._seen - before
        if new > 0:  # else there was none, or the script has set the count back
            self.done += new
            if tell:
                self._counted(new)

    def between(self) -> None:
        """Note that no step is under way. Needed after a step that raised, because its end was not reported; and after
        a roll-back, which also changes an optimizer's own count."""
        self._depth = 0
        if self.own_count is not None:
            self._seen = self.own_count()

    def _before(self, *_: Any) -> None:
        self._depth += 1

    def _after(self, *_: Any) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and not is_preparing():
            self.done += 1
            self._on_step()


# --- optimizers of Keras, which count themselves


def aggregation(optimizer: Any) -> Any:
    """What Horovod's optimizer for Keras adds gradients up with, for a step of several passes; None for others.

    Another optimizer that scales the loss may be around it.
    """
    for each in (optimizer, getattr(optimizer, "inner_optimizer", None)):
        helper = getattr(each, "_agg_helper", None)
        if hasattr(getattr(helper, "counter", None), "assign"):
            return helper
    return None


def steps_of(optimizer: Any) -> int:
    """Steps by the optimizer's count. Horovod's counts each pass of a step; those of one under way do not count."""
    count, helper = int(optimizer.iterations), aggregation(optimizer)
    if helper is None:
        return count
    return (count - int(helper.counter)) // int(helper.backward_passes_per_step)
