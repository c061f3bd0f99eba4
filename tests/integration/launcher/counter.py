"""The smallest elastic job: counts steps until a file named ``stop`` exists, or STEPS are done."""

import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 10**9

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)


@elastic.run
def train(state: elastic.TorchState) -> None:
    while state.count < STEPS:
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.count += 1
        if state.count % 5 == 0:
            state.commit()
        else:
            state.check_host_updates()
        time.sleep(0.05)


train(state)
sys.stdout.write(f"done {state.count} secret={os.environ.get('MY_SECRET')} cwd={Path.cwd().name}\n")
