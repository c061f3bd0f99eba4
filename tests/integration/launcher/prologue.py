"""Prepares with collectives between ``hvd.init()`` and its training loop, and trains until there is a file `stop`.

``LOOP``: "ours", or "stock" for Horovod's own; "torchrun" or "mpirun": with the library of that engine. ``PROLOGUE``:
"all" has all kinds of collectives; in "killed" rank 1 kills itself there once, and in "raises" it raises an error at
each start; "waits" has none, and ends with a file `go`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch

LOOP = os.environ.get("LOOP", "ours")

if LOOP == "stock":
    from horovod.torch import elastic
else:
    import hvd_elastic_ext.torch as elastic

if LOOP in ("stock", "ours"):
    import horovod.torch as hvd
else:
    import libraries

    hvd = getattr(libraries, LOOP)

PROLOGUE = os.environ.get("PROLOGUE", "all")
STOP = Path("stop")


def prepared(name: str, wait: Callable[[], object]) -> bool:
    """Return whether a file that rank 0 prepares is there once all have met."""
    if hvd.rank() == 0:
        time.sleep(1.0)
        Path(name).touch()
    wait()
    return Path(name).exists()


hvd.init()
rank, size = hvd.rank(), hvd.size()
if PROLOGUE == "waits":
    while not Path("go").exists():
        time.sleep(0.05)
else:
    if PROLOGUE == "killed" and rank == 1 and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if PROLOGUE == "raises" and rank == 1:
        raise ValueError("no data here")
    found = [
        prepared("barrier", hvd.barrier),
        prepared("allreduce", lambda: hvd.allreduce(torch.zeros(1), name="wait")),
        hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Average, name="mean").item(),
        hvd.broadcast_object("of rank 0" if rank == 0 else None, root_rank=0),
        hvd.allgather(torch.tensor([100 * (rank + 1)]), name="sizes").tolist(),
        hvd.allgather_object(None if rank == 0 else [rank]),
    ]
    print(f"rank {rank} of {size} found {found}", flush=True)

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, step=0)
state.register_reset_callbacks([lambda: print("reset", flush=True)])


@elastic.run
def train(state: elastic.TorchState) -> None:
    last = 10
    while state.step < last:
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        print(f"step {state.step} rank {hvd.rank()} size {hvd.size()}", flush=True)
        time.sleep(0.02)
        if os.environ.get("UNTIL_STOP") and not STOP.exists():
            last = state.step + 10
        state.commit()


train(state)
print(f"done {rank} of {size}", flush=True)
