"""One training step of two processes, under any of three launchers, with stamps that ``benchmarks/steps.py`` reads.

    first_step.py ours|stock|torchrun STAMPS [collectives]

All three import the same large packages. Ours trains in a State; the others train without one, which is less work.
With "collectives", Horovod's processes meet before that, as scripts do that prepare data on one of them.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

import horovod.torch as hvd
import torch

CONTENDER, STAMPS, MEETS = sys.argv[1], sys.argv[2], sys.argv[3:] == ["collectives"]
HOLD_S = 60.0
"""A process stays this long after its step, because its end is not measured."""


def step(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()


def stamp(rank: int, size: int) -> None:
    host = os.environ.get("HOROVOD_HOSTNAME", "localhost")
    file = os.open(STAMPS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{time.monotonic():.6f} {os.getpid()} {rank} {size} 1 {host}\n".encode())
    os.close(file)


def meet(model: torch.nn.Module) -> None:
    hvd.broadcast_object("a folder", root_rank=0)
    hvd.barrier()
    hvd.allreduce(torch.ones(1), name="mean")
    hvd.allgather(torch.ones(1), name="sizes")
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)


def main() -> None:
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if CONTENDER == "torchrun":
        distributed: Any = importlib.import_module("torch.distributed")
        distributed.init_process_group("gloo")
        step(optimizer, torch.nn.parallel.DistributedDataParallel(model))
        stamp(distributed.get_rank(), distributed.get_world_size())
        time.sleep(HOLD_S)
        return
    hvd.init()
    if MEETS:
        meet(model)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    if CONTENDER == "stock":
        step(optimizer, model)
        stamp(hvd.rank(), hvd.size())
        time.sleep(HOLD_S)
        return
    elastic: Any = importlib.import_module("hvd_elastic_ext.torch")

    def train(state: Any) -> None:
        step(optimizer, model)
        stamp(hvd.rank(), hvd.size())
        time.sleep(HOLD_S)

    elastic.run(train)(elastic.TorchState(model=model, optimizer=optimizer))


if __name__ == "__main__":
    main()
