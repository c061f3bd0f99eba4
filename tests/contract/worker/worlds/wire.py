"""What may come from other ranks."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import horovod.torch as hvd
import torch

from tests.contract.worker.worlds.registry import check


@dataclasses.dataclass
class Best:
    """A class of the script."""

    loss: float = 0.5


@check
def a_class_that_only_the_root_has_is_refused(State: Any) -> dict[str, Any]:
    best = None
    if hvd.rank() == 0:
        Stranger = dataclasses.make_dataclass("Stranger", ["value"])
        Stranger.__module__ = __name__
        sys.modules[__name__].Stranger = Stranger  # type: ignore[attr-defined]
        best = Stranger(5)
    state = State(best=best)
    state.sync()
    return {"best": state.best.value}


@check
def dataclasses_of_the_script_come_in(State: Any) -> dict[str, Any]:
    state = State(best=Best(0.25) if hvd.rank() == 0 else None)
    state.sync()
    return {"best": state.best.loss}


@check
def odd_tensors_are_plain_values(State: Any) -> dict[str, Any]:
    rank = hvd.rank()
    values = {
        "sparse": torch.sparse_coo_tensor([[0, 2]], [1.0 + rank, 2.0], (3,)),
        "half": torch.full((2, 2), rank + 1.0, dtype=torch.bfloat16).t(),
        "number": torch.tensor(rank),
        "nothing": torch.empty(0, 3),
        "wide": torch.arange(3.0).expand(2, 3) + rank,
        "complex": torch.tensor([complex(rank, 1)]),
    }
    state = State(values=values, batch=rank)
    state.sync()
    for tensor in state.values.values():
        if tensor.layout == torch.strided and tensor.numel():
            tensor.zero_()
    state.restore()
    return {
        name: [str(t.layout), str(t.dtype), list(t.shape), str(t.to_dense().tolist())]
        for name, t in state.values.items()
    }
