"""Finds models whose parameters are distributed over several ranks. They cannot be committed.

The reason: a commit of a rank holds a whole model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

from torch import Tensor, nn, optim

from hvd_elastic_ext.core.errors import StateError

REMEDY: Final = (
    "a commit holds whole models; use DistributedDataParallel or elastic.wrap, or leave it out of the State and save "
    "it with torch.distributed.checkpoint"
)


def demand_whole(value: nn.Module | optim.Optimizer) -> None:
    """Raise :class:`StateError` for a value that FSDP, DeepSpeed, a device mesh or torch's ZeRO shards. Imports none of
    them.
    """
    what = _who_shards(value)
    if what is not None:
        raise StateError(f"{type(value).__name__}: it is sharded over the ranks by {what}, and {REMEDY}")


def _who_shards(value: nn.Module | optim.Optimizer) -> str | None:
    """Return the name of the library that has sharded it; None if it is whole."""
    kinds = type(value).__mro__
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in kinds):
        return "torch's ZeRO"
    engine = any(kind.__module__.partition(".")[0] == "deepspeed" for kind in kinds)
    if engine or any(hasattr(tensor, "ds_tensor") for tensor in _parameters(value)):  # ds_tensor: ZeRO, stage 3
        return "DeepSpeed"
    fsdp = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())
    if isinstance(value, nn.Module) and fsdp and any(isinstance(module, fsdp) for module in value.modules()):
        return "FSDP"
    d_tensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    if d_tensor and any(isinstance(tensor, d_tensor) for tensor in _parameters(value)):
        return "fully_shard or a device mesh"
    return None


def _parameters(value: nn.Module | optim.Optimizer) -> Iterable[Tensor]:
    if isinstance(value, nn.Module):
        return value.parameters()
    return (tensor for group in value.param_groups for tensor in group["params"])
