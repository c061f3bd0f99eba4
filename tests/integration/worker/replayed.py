"""``replayed.py DIRECTORY VICTIM AT STEPS [records]``: trains with everything that a step may depend on: dropout, batch
normalisation, generators of Python and NumPy, several passes, a scheduler, and a rate that follows the world's size.

The process that is rank VICTIM in the first world kills itself in step AT; -1: none does. Each process writes after
each step, to a file of its own: the step, its world, the weights, the buffers, numbers of all generators, the samples.
"""

import json
import math
import os
import random
import signal
import sys
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.worker.process import standby

FOLDER, VICTIM, AT, STEPS = Path(sys.argv[1]), *map(int, sys.argv[2:5])
RECORDS = sys.argv[5:] == ["records"]
COUNT, TOTAL, EVERY = 108, 24, 10

torch.set_num_threads(1)
inputs = torch.randn(COUNT, 6, generator=torch.Generator().manual_seed(5))
data = TensorDataset(torch.arange(COUNT), inputs, (inputs.sum(1) > 0).long())


@elastic.run
def train(state, out):
    scale()
    sampler = state.sampler
    batches = elastic.GlobalBatches(sampler, TOTAL, largest=5)
    optimizer.set_backward_passes_per_step(batches.passes)
    loader = DataLoader(data, batch_sampler=batches)
    if RECORDS:
        batches = state.stream
        loader = batches.loader(12)
    while state.step < STEPS:
        for step in batches.steps(loader):
            draws = []
            for (ids, batch, labels), weight in step:
                noise = random.random() + np.random.rand()
                if weight:
                    draws.append([ids.tolist(), noise, torch.rand(1).item()])
                loss = F.cross_entropy(model(batch * (1 + 0.1 * noise)), labels) * weight
                loss.backward()
                total(loss.detach())  # it hangs if a rank has fewer micro-batches than another
            if (state.step, first[0]) == (AT - 1, VICTIM) and not (FOLDER / "killed").exists():
                (FOLDER / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            state.step += 1
            line = {
                "step": state.step,
                "world": standby.current().generation,
                "size": elastic.size(),
                "rank": elastic.rank(),
                "weights": [value for p in model.parameters() for value in p.flatten().tolist()],
                "buffers": [value for b in model.buffers() for value in b.flatten().tolist()],
                "after": [random.random(), np.random.rand(), torch.rand(1).item()],
                "draws": draws,
            }
            print(json.dumps(line), file=out, flush=True)
            if state.step % EVERY == 0:
                state.commit()
            else:
                state.check_host_updates()
            if state.step == STEPS:
                return
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        state.stream.set_epoch(state.epoch)


def total(loss):
    """The sum over all ranks."""
    if dist.is_initialized():
        dist.all_reduce(loss)
    else:
        hvd.allreduce(loss, op=hvd.Sum, name="loss")


def open_shard(shard, start):
    yield from (data[number] for number in range(int(shard) + 3 * start, COUNT, 3))


elastic.init()
torch.manual_seed(3)
# Measured shares may leave a rank a single record, in which there is nothing to normalise.
norm = nn.LayerNorm(8) if RECORDS else nn.BatchNorm1d(8)
model = nn.Sequential(nn.Linear(6, 8), norm, nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2))
optimizer = elastic.wrap(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters())
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 + 0.5 * math.cos(step))  # never ends
scale = elastic.ScaledLearningRate(optimizer, "linear", base=elastic.size(), scheduler=scheduler)
state = elastic.TorchState(
    model=model,
    optimizer=optimizer,
    scheduler=scheduler,
    sampler=elastic.ElasticSampler(data, seed=1),
    stream=elastic.ElasticStream(["0", "1", "2"], open_shard, lengths=[COUNT // 3] * 3, shares="measured"),
    epoch=0,
    step=0,
)
state.register_reset_callbacks([scale])
first = [elastic.rank()]
with (FOLDER / f"{os.getpid()}.steps").open("w") as out:
    train(state, out)
print("done", flush=True)
