"""Trains ten steps. After the fifth, rank 0 computes for some seconds, and never releases the interpreter's lock."""

from __future__ import annotations

import sys
import time

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, step=0)


def compute(seconds: float) -> float:
    """Compute in one call of C for ``seconds``, without releasing the interpreter's lock. Return the seconds that it
    took."""
    since = time.monotonic()
    return next(filter((since + seconds).__lt__, iter(time.monotonic, None))) - since


@elastic.run
def train(state: elastic.TorchState) -> None:
    while state.step < 10:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        if state.step == 5 and hvd.rank() == 0:
            print("evaluates", flush=True)
            print("has evaluated for", compute(float(sys.argv[1])), flush=True)


train(state)
print("trained", state.step, "size", hvd.size(), flush=True)
