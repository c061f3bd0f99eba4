"""Calls collectives before its training functions and between two of them, and prints what they return.

A training function ends when there is a file ``stop`` with its number.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch

if os.environ.get("USE", "ours") == "ours":
    import hvd_elastic_ext.torch as elastic
else:
    from horovod.torch import elastic


@elastic.run
def fit(state, net, optimizer, call):
    print(f"rank {hvd.rank()} pid {os.getpid()} trains in call {call}", flush=True)
    last = None
    while last is None or state.step < last:
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        time.sleep(0.02)
        found = hvd.allreduce(torch.tensor([float(Path(f"stop{call}").exists())]), op=hvd.Sum, name="stop")
        if last is None and found.item():
            last = state.step + 2
    return state.step


def prepared() -> str:
    """What the first process of this host has prepared for the others."""
    file = Path(f"data-{os.environ['HOROVOD_HOSTNAME']}")
    if hvd.local_rank() == 0 and not file.exists():
        time.sleep(1.0)
        file.write_text("prepared")
    hvd.barrier()
    return file.read_text()


def own(rank: int) -> list[object]:
    """What collectives return to this process."""
    seed = torch.tensor([float(rank), 7.0])
    hvd.broadcast_(seed, root_rank=0, name="seed")
    handle = hvd.allreduce_async(torch.tensor([rank + 1]), op=hvd.Sum, name="later")
    return [
        hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Average, name="mean").item(),
        hvd.broadcast_object({"lr": 0.5, "layers": (1, 2)} if rank == 0 else None),
        hvd.allgather(torch.tensor([100 * (rank + 1)])).tolist(),
        seed.tolist(),
        hvd.synchronize(handle).item(),
        prepared(),
    ]


hvd.init()
print(f"pid {os.getpid()} got {own(hvd.rank())}", flush=True)
for call in (1, 2):
    net = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.01), named_parameters=net.named_parameters()
    )
    state = elastic.TorchState(model=net, optimizer=optimizer, step=0)
    fit(state, net, optimizer, call)
    torch.manual_seed(hvd.rank() + os.getpid())
    order = hvd.broadcast_object(torch.randperm(1000)[:4].tolist() if hvd.rank() == 0 else None, name="order")
    print(f"pid {os.getpid()} after call {call} got {order}", flush=True)
print("done", flush=True)
