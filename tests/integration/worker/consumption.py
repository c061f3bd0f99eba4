"""``consumption.py DIRECTORY``: trains two epochs, and writes before each step which data it uses.

Each rank writes to a file of its own: when its world began, the step, the epoch, the samples and the records. A step
that was rolled back is written again by a later world. Steps are slow until the file ``hurry`` exists.
"""

import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.worker.data.stream import ElasticStream

COUNT, EPOCHS, BATCH = 180, 2, 3
LENGTHS = {"a": 100, "b": 7, "c": 0, "d": 73}


def open_shard(shard, start):
    yield from (f"{shard}{index}" for index in range(start, LENGTHS[shard]))


@elastic.run
def train(state, out):
    began = hvd.broadcast_object(time.monotonic_ns(), root_rank=0, name="began")
    state.stream.measure()
    samples = DataLoader(range(COUNT), batch_size=BATCH, sampler=state.sampler, num_workers=1)
    records = state.stream.loader(batch_size=BATCH, num_workers=1)
    while state.epoch < EPOCHS:
        for indices, texts in zip(samples, records, strict=True):
            state.step += 1
            line = (began, state.step, state.epoch, ",".join(map(str, indices.tolist())), ",".join(texts))
            print(*line, file=out, flush=True)
            state.optimizer.zero_grad()
            state.model(indices[:, None].float()).mean().backward()
            state.optimizer.step()
            time.sleep(0.01 if Path(sys.argv[1], "hurry").exists() else 0.75)  # slow enough for hosts that are to join
            state.sampler.record_batch(state.step, len(indices))
            state.stream.record_batch(state.step, len(texts))
            if state.step % 4 == 0:
                state.commit()
            else:
                state.check_host_updates()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.stream.set_epoch(state.epoch)
        state.commit()


hvd.init()
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model.named_parameters())
state = elastic.TorchState(
    model=model,
    optimizer=optimizer,
    sampler=elastic.ElasticSampler(range(COUNT), seed=1),
    stream=ElasticStream(list(LENGTHS), open_shard, seed=1),
    epoch=0,
    step=0,
)
with (Path(sys.argv[1]) / f"{os.getpid()}.consumed").open("w") as out:
    train(state, out)
print("done after", state.step, "steps", flush=True)
