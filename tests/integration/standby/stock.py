"""A training script without our package: Horovod's own State, sampler and loop."""

from __future__ import annotations

import os
import time

import horovod.torch as hvd
import torch
from horovod.common.elastic import notification_manager

STEPS = int(os.environ.get("STEPS", "100000"))
PAUSE = float(os.environ.get("PAUSE", "0.02"))

print("before init", flush=True)
hvd.init()
print("init as", hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), flush=True)
if hvd.rank() == 0:
    print("rank 0 branch", flush=True)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
sampler = hvd.elastic.ElasticSampler(list(range(200)), shuffle=False)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0)


def stopped() -> bool:
    """Whether the test wants the end. The answer is the same on all ranks."""
    return bool(hvd.allreduce(torch.tensor(float(os.path.exists(os.environ["STOP"]))), op=hvd.Max, name="stop"))


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> str:
    while state.step < STEPS and not stopped():
        optimizer.zero_grad()
        model(torch.full((2, 4), float(state.step % 7))).sum().backward()
        optimizer.step()
        state.step += 1
        time.sleep(PAUSE)
        print("step", state.step, "rank", hvd.rank(), "size", hvd.size(), flush=True)
        state.commit()
    return "trained"


ended = train(state)
print("notification service:", notification_manager._service, flush=True)
print(ended, round(sum(float(p.sum()) for p in model.parameters()), 5), flush=True)
