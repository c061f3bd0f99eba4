"""How long a step waits for other ranks, where Horovod does not tell: in ``torch.distributed``, under DDP, and while
``elastic.wrap`` averages.

In synchronous training all ranks take the same time. Only the part without waits says which of them is slow.

DDP waits in C++ at the end of a backward pass: it adds a callback to those that autograd calls last. Ours are called
right before that one and right after it. They are queued from within the pass, by the first gradient that it computes
for an output of the model. On a GPU the host does not wait then, so nothing is measured.

:class:`OwnTime` measures a part of a step without these waits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree

from hvd_elastic_ext.worker.comms.horovod import time_waits
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.steps import StepTimer

_TORCH: Final[Any] = torch
_AUTOGRAD: Final[Any] = torch.autograd.Variable._execution_engine
_DONE: Final = "hvd_elastic_measured"


def waiting() -> AbstractContextManager[None]:
    """Context around a wait for other ranks. What a GPU still has to do is done before: that is this rank's own."""
    timer = standby.current().step_timer
    if timer is None:
        return nullcontext()
    if _TORCH.cuda.is_initialized():
        torch.cuda.synchronize()
    return timer.waiting()


def measure(timer: Callable[[], StepTimer | None]) -> None:
    """Measure the waits in ``torch.distributed`` and in each DDP, from now on; nothing while there is no ``timer``.

    The classes are changed, not their objects: a script may copy and pickle those.
    """
    if not dist.is_available() or hasattr(dist.Work, _DONE):
        return
    setattr(dist.Work, _DONE, True)
    untraced = _TORCH._disable_dynamo  # as DDP's own functions are; torch.compiler.disable imports the compiler now

    def within_a_wait(plain: Any) -> Any:
        @functools.wraps(plain)
        def waits(self: Any, *args: Any, **options: Any) -> Any:
            present = timer()
            with nullcontext() if present is None else present.waiting():
                return plain(self, *args, **options)

        return untraced(waits)

    def before_a_wait(plain: Any) -> Any:
        @functools.wraps(plain)
        def returns(self: Any, output: Any) -> Any:
            found = plain(self, output)
            if (present := timer()) is not None:
                _expect_backward(present, self, found)
            return found

        return untraced(returns)

    # The values of buffers come from rank 0 in each forward pass.
    changes = ((dist.Work, "wait", within_a_wait), (DistributedDataParallel, "_sync_buffers", within_a_wait))
    for kind, name, change in (*changes, (DistributedDataParallel, "_post_forward", before_a_wait)):
        if hasattr(kind, name):
            setattr(kind, name, change(getattr(kind, name)))


def _expect_backward(timer: StepTimer, ddp: Any, output: Any) -> None:
    """Measure how long DDP waits at the end of the backward pass that begins with this output."""
    if not ddp.require_backward_grad_sync or getattr(ddp, "_use_python_reducer", False):
        return
    if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in _pytree.tree_leaves(output)):
        timer.unseen += 1  # the device waits, and not this thread
    if not timer.measures():
        return
    queued: list[None] = []

    def first_gradient(_: Tensor) -> None:
        if not queued:
            queued.append(None)
            _AUTOGRAD.queue_callback(computed)

    def computed() -> None:
        queued.clear()
        began = timer.now()
        _AUTOGRAD.queue_callback(lambda: timer.waited(began))  # after DDP's own, which is in the queue already

    for value in _pytree.tree_leaves(output):
        # A parameter among the outputs would keep the hook for ever.
        if isinstance(value, Tensor) and value.grad_fn is not None and value.device.type == "cpu":
            cast(Any, value).register_hook(first_gradient)


# --- a rank's own part of a step


class OwnTime:
    """The time that this rank needs for some work of its own, without its waits for other ranks in between.

    On a GPU the host only queues the work, so there the device measures, by events in its present stream: from when it
    has done all earlier work to when it has done this. Nothing waits for it until the seconds are asked for. It
    does not tell what part of that were waits for others: with any such wait the time is unknown.
    """

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer
        self._events = [_event()] if _TORCH.cuda.is_initialized() else []
        self._waits, self._unseen = timer.all_waits_s, timer.unseen
        self._began = timer.now()
        self._seconds: float | None = None

    @classmethod
    def begin(cls) -> OwnTime:
        """Begin to measure, now."""
        return cls(_timer())

    def end(self) -> None:
        """End the measurement."""
        passed_s = self._timer.now() - self._began
        waited_s = self._timer.all_waits_s - self._waits
        if self._timer.unseen != self._unseen or (self._events and waited_s > 0.0):
            self._events.clear()  # a wait within it was not measured, or not by the device
        elif self._events:
            self._events.append(_event())
        else:
            self._seconds = passed_s - waited_s

    def seconds(self) -> float | None:
        """Return the time; None if it is not known, because a wait for other ranks was not measured, or was one on a
        GPU."""
        if self._events:
            begun, ended = self._events
            ended.synchronize()
            return float(begun.elapsed_time(ended)) / 1000
        return self._seconds


def _event() -> Any:
    event = _TORCH.cuda.Event(enable_timing=True)
    event.record()
    return event


def _timer() -> StepTimer:
    """The timer of this process. Without an agent, which would need it for heartbeats, there is none yet."""
    process = standby.current()
    if process.step_timer is None:
        timer = process.step_timer = StepTimer(process.link.status)
        time_waits(timer.waiting)
        measure(lambda: process.step_timer)
    return process.step_timer
