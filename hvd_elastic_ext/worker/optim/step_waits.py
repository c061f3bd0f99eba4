"""How long a step waits for other ranks, where Horovod does not tell: under DDP, and while ``elastic.wrap`` averages.

In synchronous training all ranks take the same time. Only the part without waits says which of them is slow.

DDP waits in C++ at the end of a backward pass: it adds a callback to those that autograd calls last. Ours are called
right before that one and right after it. They are queued from within the pass, by the first gradient that it computes
for an output of the model.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree

from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.steps import StepTimer

_AUTOGRAD: Final[Any] = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
_DONE: Final = "hvd_elastic_waits"


def waiting() -> AbstractContextManager[None]:
    """Context around a wait for other ranks."""
    timer = standby.current().step_timer
    return nullcontext() if timer is None else timer.waiting()


def measure_ddp(timer: StepTimer) -> None:
    """Measure the waits of each ``DistributedDataParallel`` that is made from now on."""
    kind: Any = DistributedDataParallel
    plain = kind.__init__
    if hasattr(kind, _DONE):
        return

    @functools.wraps(plain)
    def measured(self: Any, *args: Any, **options: Any) -> None:
        plain(self, *args, **options)
        measure(self, timer)

    kind.__init__ = measured
    setattr(kind, _DONE, True)


def measure(ddp: DistributedDataParallel, timer: StepTimer) -> None:
    """Measure the waits of this one."""
    ddp.register_forward_hook(functools.partial(_after_forward, timer))


def _after_forward(timer: StepTimer, ddp: Any, _: Any, output: Any) -> None:
    if not ddp.require_backward_grad_sync:
        return
    queued: list[None] = []

    def first_gradient(_: Tensor) -> None:
        if not queued:
            queued.append(None)
            _AUTOGRAD.queue_callback(computed)

    def computed() -> None:
        timer.wait_begins()
        _AUTOGRAD.queue_callback(timer.wait_ends)  # last of all: DDP's callback is in the queue already

    for value in _pytree.tree_leaves(output):
        if isinstance(value, Tensor) and value.requires_grad:
            value.register_hook(first_gradient)
