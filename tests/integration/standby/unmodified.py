"""A script for plain ``hvd.elastic`` that records the samples of all ranks."""

from __future__ import annotations

import time

import horovod.torch as hvd
import torch
from horovod.torch.elastic import ElasticSampler

hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model.named_parameters())
sampler = ElasticSampler(list(range(240)), shuffle=True, seed=3)
state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, seen=[], batch=0)


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    loader = torch.utils.data.DataLoader(torch.arange(240.0).reshape(-1, 1), batch_size=4, sampler=state.sampler)
    for data in loader:
        state.optimizer.zero_grad()
        state.model(data).mean().backward()
        state.optimizer.step()
        state.sampler.record_batch(state.batch, len(data))
        state.seen = state.seen + [int(sample) for sample in hvd.allgather(data.reshape(-1), name="seen")]
        state.batch += 1
        print("step", state.batch, "rank", hvd.rank(), "size", hvd.size(), flush=True)
        time.sleep(0.02)
        if state.batch % 6 == 0:
            state.commit()


train(state)
print("samples", len(state.seen), len(set(state.seen)), type(state).__module__, type(sampler).__module__, flush=True)
