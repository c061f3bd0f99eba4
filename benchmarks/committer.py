"""Times ``TorchState.save()`` in one process, beside a bare copy of the same bytes; prints JSON.

    committer.py SIDE WIDTH SAVES

Adam keeps two tensors for each weight, so a model of 2 × WIDTH² weights has three times as much to save.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import torch

SIDE, WIDTH, SAVES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
WARM_UP = 3

elastic = importlib.import_module("hvd_elastic_ext.torch" if SIDE == "ours" else "horovod.torch.elastic")

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
model(torch.ones(1, WIDTH)).sum().backward()
optimizer.step()
state = elastic.TorchState(model=model, optimizer=optimizer, epoch=0)


def tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in a state dict."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [tensor for item in inner for tensor in tensors(item)]


def timed(action: Callable[[], object]) -> float:
    """Seconds that ``action`` takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


with torch.no_grad():
    live = tensors([model.state_dict(), optimizer.state_dict()])
    buffers = [tensor.clone() for tensor in live]


def bare_copy() -> None:
    """The least that a commit can cost without tricks: every byte copied into memory that is there already."""
    with torch.no_grad():
        for source, target in zip(live, buffers, strict=True):
            target.copy_(source)


saves, copies = [], []
for _ in range(WARM_UP + SAVES):
    saves.append(timed(state.save))
    copies.append(timed(bare_copy))
mb = sum(tensor.numel() * tensor.element_size() for tensor in live) / 1e6
sys.stdout.write(json.dumps({"saves": saves[WARM_UP:], "copies": copies[WARM_UP:], "mb": mb}) + "\n")
