"""``unlike.py DIRECTORY SLOW TIMES EPOCHS KIND…``: trains in shares that follow the ranks' speed, over "samples",
"records" or both in each epoch.

Ranks on the host SLOW need TIMES as long for a sample. Each rank writes before each step to a file of its own: when its
world began, the step, the epoch, what kind of data it is, and this rank's part of them. A step that was rolled back is
written again by a later world. Samples take no time once the file ``hurry`` exists. The last line of each rank says how
far its weights are from those of one process with the same global batches.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.worker.comms import current_world

FOLDER, SLOW = Path(sys.argv[1]), sys.argv[2]
EPOCHS, KINDS = int(sys.argv[4]), sys.argv[5:]
COUNT, TOTAL, EACH = 720, 24, 12
LENGTHS = {"a": 200, "b": 7, "c": 0, "d": 401}
SAMPLE_S = 0.02 * (float(sys.argv[3]) if os.environ["HOROVOD_HOSTNAME"] == SLOW else 1.0)

torch.set_num_threads(1)
inputs = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
data = TensorDataset(torch.arange(COUNT), inputs, (inputs.sum(1) > 0).long())


def trainee():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def open_shard(shard, start):
    yield from (f"{shard}{index}" for index in range(start, LENGTHS[shard]))


def alone():
    """Return the weights of one process with the same global batches."""
    net, plain = trainee()
    for epoch in range(EPOCHS):
        sampler = elastic.ElasticSampler(range(COUNT), seed=1)
        sampler.set_epoch(epoch)
        for start in range(0, COUNT, TOTAL):
            _, batch, labels = data[sampler.order()[start : start + TOTAL]]
            plain.zero_grad()
            F.cross_entropy(net(batch), labels).backward()
            plain.step()
    return [parameter.detach() for parameter in net.parameters()]


@elastic.run
def train(state, out):
    began = current_world.joined().max(time.monotonic_ns(), name="began")

    def note(kind, parts):
        print(began, state.step, state.epoch, kind, ",".join(map(str, parts)) or "-", file=out, flush=True)

    def wait(samples):
        time.sleep(0.0 if (FOLDER / "hurry").exists() else SAMPLE_S * samples)

    state.stream.measure()
    batches = elastic.GlobalBatches(state.sampler, TOTAL, largest=10, shares="measured")
    optimizer.set_backward_passes_per_step(batches.passes)
    loader = DataLoader(data, batch_sampler=batches, num_workers=1)
    lines = state.stream.loader(batch_size=EACH, num_workers=1)
    while state.epoch < EPOCHS:
        for step in batches.steps(loader):
            state.step += 1
            for (places, batch, labels), weight in step:
                note("samples", places.tolist() if weight else [])
                (F.cross_entropy(model(batch), labels) * weight).backward()
                wait(len(places))
            optimizer.step()
            optimizer.zero_grad()
            commit(state)
        for step in state.stream.steps(lines) if "records" in KINDS else ():
            state.step += 1
            for texts, weight in step:
                note("records", texts if weight else [])
                (other(torch.ones(len(texts), 1)).mean() * weight).backward()
                wait(len(texts))
            beside.step()
            beside.zero_grad()
            commit(state)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.stream.set_epoch(state.epoch)
        state.commit()


def commit(state):
    if state.step % 3 == 0:
        state.commit()
    else:
        state.check_host_updates()


elastic.init()
model, optimizer = trainee()
optimizer = elastic.wrap(optimizer, model.named_parameters())
other = nn.Linear(1, 1)
beside = elastic.wrap(torch.optim.SGD(other.parameters(), lr=1e-6), other.named_parameters())
state = elastic.TorchState(
    model=model,
    optimizer=optimizer,
    other=other,
    beside=beside,
    sampler=elastic.ElasticSampler(range(COUNT), seed=1),
    stream=elastic.ElasticStream(list(LENGTHS), open_shard, seed=1, shares="measured"),
    epoch=0,
    step=0,
)
with (FOLDER / f"{os.getpid()}.consumed").open("w") as out:
    train(state, out)
pairs = zip(model.parameters(), alone(), strict=True)
off = max((mine - theirs).abs().max().item() for mine, theirs in pairs)
print("done after", state.step, "steps, off by", off, flush=True)
