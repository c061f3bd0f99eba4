"""What is each rank's own: random generators."""

from __future__ import annotations

import random
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from torch import nn

from tests.contract.worker.worlds.registry import check


def drawn() -> list[float]:
    mask = nn.functional.dropout(torch.ones(64), 0.5).tolist()
    return [random.random(), float(np.random.rand()), *mask]


@check
def dropout_differs_after_a_join(State: Any) -> dict[str, Any]:
    """The rank that joins was started with the script's seed; the others drew from theirs as often as it did."""
    veterans = State(batch=0)
    veterans.sync()
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    state = veterans if hvd.rank() == 0 else State(batch=0)
    state.sync()
    return {"drawn": drawn()}
