"""``alone.py DIRECTORY EPOCHS EVERY KIND``: ranks train alone between averages. KIND: LocalSGD or DiLoCo.

Each process writes to a file of its own: for a step "step", a digest of the weights before it and one of those after
it, the epoch, its samples and the size of the world; for an average "average" and the size. A step takes PAUSE_S until
the file ``hurry`` exists, and ten times as long in a world of fewer than RANKS, which waits for a process to come back.
At the beginning of each world a rank says with how many moments it begins; its last line of output is a digest of its
weights.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hvd_elastic_ext.torch as elastic

FOLDER, EPOCHS, EVERY, KIND = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
COUNT, BATCH = 720, 4
PAUSE_S, RANKS = float(os.environ.get("PAUSE_S", "0.05")), int(os.environ.get("RANKS", "1"))

elastic.init()
torch.set_num_threads(1)
torch.manual_seed(3)
inputs = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(5))
data = TensorDataset(torch.arange(COUNT), inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
if KIND == "DiLoCo":
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    averaging = elastic.DiLoCo(model, optimizer, outer, every=EVERY)
else:
    averaging = elastic.LocalSGD(optimizer, every=EVERY)
state = elastic.TorchState(
    model=model,
    optimizer=optimizer,
    averaging=averaging,
    sampler=elastic.ElasticSampler(range(COUNT), seed=1),
    epoch=0,
)
apply = averaging.apply


def digest():
    found = hashlib.sha256(b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters()))
    return found.hexdigest()[:16]


def applied(means):
    apply(means)
    print("average", elastic.size(), file=out, flush=True)


averaging.apply = applied


@elastic.run
def train(state):
    print(f"process {os.getpid()} begins with {len(optimizer.state)} moments", flush=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=state.sampler)
    while state.epoch < EPOCHS:
        state.sampler.set_epoch(state.epoch)
        for number, (samples, batch, labels) in enumerate(loader):
            before = digest()
            optimizer.zero_grad()
            F.cross_entropy(model(batch), labels).backward()
            optimizer.step()
            taken = ",".join(map(str, samples.tolist()))
            print("step", before, digest(), state.epoch, taken, elastic.size(), file=out, flush=True)
            slow = 10 if elastic.size() < RANKS else 1
            time.sleep(0.0 if (FOLDER / "hurry").exists() else slow * PAUSE_S)
            state.sampler.record_batch(number, len(samples))
            state.commit()
        state.epoch += 1


with (FOLDER / f"{os.environ.get('HOROVOD_HOSTNAME', 'rank')}.{os.getpid()}.alone").open("w") as out:
    train(state)
print(f"weights {digest()}\n", end="", flush=True)  # as one string: all ranks write
