"""The step under way of a wrapped optimizer: Horovod's ``DistributedOptimizer``, or ours.

Horovod has no public interface for it. Only this module reads its bookkeeping.
"""

from __future__ import annotations

from typing import Any

from torch import optim


def accumulating(optimizer: Any) -> bool:
    """Whether a step of ``optimizer`` has begun that must not be interrupted.

    Such a step lasts from the first of several backward passes until their sum is averaged. Horovod averages during
    the backward pass, so with Horovod a single pass counts, too, until its reductions have ended.
    """
    own = getattr(optimizer, "accumulating", None)
    return bool(getattr(optimizer, "_handles", None)) if own is None else bool(own)


def drop_step(optimizer: optim.Optimizer) -> None:
    """Drop gradients and pending reductions, whose handles are invalid in another world."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None
    forget_reductions(optimizer)


def forget_reductions(optimizer: Any) -> None:
    """Reset the bookkeeping of ``hvd.DistributedOptimizer`` (or ours) to the start of a step.

    Horovod does part of this when state is loaded. But the root of a sync never loads it, and would keep old handles.
    """
    forget = getattr(optimizer, "forget_reductions", None)
    if forget is not None:
        forget()
    delays = getattr(optimizer, "_allreduce_delay", None)
    if delays is None:
        return
    optimizer._handles = {}
    optimizer._synchronized = False
    optimizer._should_synchronize = True
    for parameter in delays:
        delays[parameter] = optimizer.backward_passes_per_step
    for group in getattr(optimizer, "_group_counts", {}):
        optimizer._group_counts[group] = 0
