"""Counts steps. Its last rank hangs in a step while a file named ``hang`` exists in its folder."""

import time
from pathlib import Path

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)


@elastic.run
def train(state: elastic.TorchState) -> None:
    while not Path("stop").exists():
        optimizer.zero_grad()
        while hvd.rank() == hvd.size() - 1 and Path("hang").exists():
            time.sleep(0.1)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.count += 1
        state.commit()
        time.sleep(0.05)


train(state)
