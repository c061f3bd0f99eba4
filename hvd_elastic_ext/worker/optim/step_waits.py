"""How long a step waits for other ranks, where Horovod does not tell: in ``torch.distributed``, under DDP, and while
``elastic.wrap`` averages.

In synchronous training all ranks take the same time. Only the part without waits says which of them is slow.

DDP waits in C++ at the end of a backward pass: it adds a callback to those that autograd calls last. Ours are called
right before that one and right after it. They are queued from within the pass, by the first gradient that it computes
for an output of the model. On a GPU the host does not wait then, but the device does: heartbeats do not know of it.

:class:`OwnTime` measures a part of a step without these waits, by the device where that works by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, cast
from weakref import WeakSet

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
    values = [value for value in _pytree.tree_leaves(output) if isinstance(value, Tensor)]
    by_device = any(map(_on_present_device, values))
    if any(value.device.type != "cpu" and not _on_present_device(value) for value in values):
        timer.unseen += 1  # another device waits
    if not timer.measures():
        return
    queued: list[None] = []

    def first_gradient(_: Tensor) -> None:
        if not queued:
            queued.append(None)
            _AUTOGRAD.queue_callback(computed)

    def computed() -> None:
        queued.clear()
        if by_device:
            timer.mark()
        began = timer.now()
        # After DDP's own, which is in the queue already.
        _AUTOGRAD.queue_callback(timer.mark if by_device else lambda: timer.waited(began))

    for value in values:
        # A parameter among the outputs would keep the hook for ever.
        if value.grad_fn is not None and (value.device.type == "cpu" or _on_present_device(value)):
            cast(Any, value).register_hook(first_gradient)


def _on_present_device(value: Tensor) -> bool:
    """Whether a value is on the GPU whose present stream this process uses."""
    return value.is_cuda and value.get_device() == torch.cuda.current_device()


# --- a rank's own part of a step


class OwnTime:
    """The time that this rank needs for some work of its own, without its waits for other ranks in between.

    On a GPU the host only queues the work, and may queue a wait, too. So there the device measures, by events in its
    present stream: from when it has done all earlier work to when it has done this, and between where each wait begins
    and where it ends. Nothing waits for it until the seconds are asked for.
    """

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer
        self._device = torch.cuda.current_device() if _TORCH.cuda.is_initialized() else None
        self._events: list[Any] = []
        """Own work is between the first and the second of these events, the third and the fourth, and so on."""
        self._waits, self._unseen = timer.all_waits_s, timer.unseen
        self._began = timer.now()
        self._seconds: float | None = None
        if self._device is not None:
            timer.mark = _mark_all
            _UNDER_WAY.add(self)
            self.mark()

    @classmethod
    def begin(cls) -> OwnTime:
        """Begin to measure, now."""
        return cls(_timer())

    def end(self) -> None:
        """End the measurement."""
        _UNDER_WAY.discard(self)
        passed_s = self._timer.now() - self._began
        waited_s = self._timer.all_waits_s - self._waits
        if self._device is not None:
            self.mark()
        if self._timer.unseen != self._unseen or len(self._events) % 2:
            self._events.clear()  # a wait within it was not measured, or has failed
        elif self._device is None:
            self._seconds = passed_s - waited_s

    def mark(self) -> None:
        """Note where the device has come to: to the begin or the end of a wait, or of it all."""
        self._events.append(_event(self._device))

    def seconds(self) -> float | None:
        """Return the time; None if it is not known, because a wait for other ranks was not measured."""
        if self._events:
            for event in self._events:  # they may be in several streams, such as those of autograd's threads
                event.synchronize()
            spans = zip(self._events[::2], self._events[1::2], strict=True)
            self._seconds = sum(float(begun.elapsed_time(ended)) for begun, ended in spans) / 1000
            self._events.clear()
        return self._seconds


_UNDER_WAY: Final[WeakSet[OwnTime]] = WeakSet()
"""What is being measured on a device. A step that is left before its end is forgotten."""


def _mark_all() -> None:
    for measured in list(_UNDER_WAY):
        measured.mark()


def _event(device: int | None) -> Any:
    """An event in the present stream of a device. In autograd's threads that is the one of the backward pass."""
    event = _TORCH.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _timer() -> StepTimer:
    """The timer of this process. Without an agent, which would need it for heartbeats, there is none yet."""
    process = standby.current()
    if process.step_timer is None:
        timer = process.step_timer = StepTimer(process.link.status)
        time_waits(timer.waiting)
        measure(lambda: process.step_timer)
    return process.step_timer
