"""Scripts for Horovod alone, without our package: ``plain`` has no elastic loop, ``stock`` has Horovod's State.

They print each step, and end when a file named ``stop`` exists or STEPS are done. Rank FAILS raises an error at its
end, rank FEWER ends before the others, and rank SAVES fails within the training function when all steps are done.
"""

import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

KIND, STEPS, FAILS = sys.argv[1], int(os.environ.get("STEPS", "1000000")), int(os.environ.get("FAILS", "-1"))
FEWER, SAVES = int(os.environ.get("FEWER", "-1")), int(os.environ.get("SAVES", "-1"))

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())


def step(number: int) -> bool:
    """Do a step. Return whether another one follows."""
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2)).sum()
    loss.backward()
    optimizer.step()
    sys.stdout.write(f"step {number} rank {hvd.rank()} size {hvd.size()}\n")
    sys.stdout.flush()
    time.sleep(0.05)
    stops = hvd.allreduce(torch.tensor([float(Path("stop").exists())]), name="stop")
    return number + 1 < STEPS and not stops.item()


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    while step(state.count):
        state.count += 1
        if hvd.rank() == FEWER and state.count > 20:
            return
        state.commit()
    if hvd.rank() == SAVES:
        raise OSError(28, "No space left on device", "model.pt")
    time.sleep(0.5)


if KIND == "stock":
    train(hvd.elastic.TorchState(model, optimizer, count=0))
else:
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    count = 0
    while step(count):
        count += 1
if hvd.rank() == FAILS:
    raise OSError(28, "No space left on device", "model.pt")
time.sleep(3600 if hvd.rank() == FEWER else 0.5)
sys.stdout.write(f"end of rank {hvd.rank()}\n")
