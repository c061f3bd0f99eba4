"""``one_step.py DIRECTORY``: trains until it has seen a checkpoint, and six steps more. Each rank writes what each step
was: its loss, the norms of the averaged gradients, and the numbers of its samples.

A process that executes one step makes the file ``wrong`` if it comes past that step. With ``STANDS_STILL`` in its
environment it stops before training, and writes its process id into the file of that name.
"""

import json
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

FOLDER = Path(sys.argv[1])
IS_JOB = "HVD_ELASTIC_REPLAY_STEP" not in os.environ
COUNT, TOTAL, MORE = 96, 24, 6

torch.set_num_threads(1)
inputs = torch.randn(COUNT, 6, generator=torch.Generator().manual_seed(5))
data = TensorDataset(torch.arange(COUNT), inputs, (inputs.sum(1) > 0).long())
elastic.init()
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2))
optimizer = elastic.wrap(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.9)
state = elastic.TorchState(
    model=model,
    optimizer=optimizer,
    scheduler=scheduler,
    sampler=elastic.ElasticSampler(data),
    step=0,
    until=None,
    epoch=0,
)


@elastic.run
def train(state, out):
    batches = elastic.GlobalBatches(state.sampler, TOTAL, largest=7)
    optimizer.set_backward_passes_per_step(batches.passes)
    loader = DataLoader(data, batch_sampler=batches)
    while True:
        for step in batches.steps(loader):
            optimizer.zero_grad()
            samples, total = [], 0.0
            for (numbers, batch, labels), weight in step:
                loss = F.cross_entropy(model(batch), labels) * weight
                loss.backward()
                total += loss.item()
                samples += numbers.tolist() if weight else []
            optimizer.synchronize()
            norms = [torch.linalg.vector_norm(each.grad).item() for each in model.parameters()]
            with optimizer.skip_synchronize():
                optimizer.step()
            scheduler.step()
            state.step += 1
            line = {"step": state.step, "rank": elastic.rank(), "loss": total, "norms": norms, "samples": samples}
            print(json.dumps(line), file=out, flush=True)
            if state.until is None:
                seen = torch.tensor([len(list(FOLDER.glob("checkpoints/*/manifest.json")))])
                current_world.joined().sum(seen, name="seen")
                state.until = state.step + MORE if seen.item() else None
            if state.step == state.until:
                return
            if state.step % 4 == 0:
                state.commit()
            else:
                state.check_host_updates()
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)


if (still := os.environ.get("STANDS_STILL")) is not None:
    Path(still).write_text(str(os.getpid()))
    time.sleep(600)
try:
    with (FOLDER / f"{'job' if IS_JOB else 'alone'}-{os.getpid()}.steps").open("w") as out:
        train(state, out)
finally:
    if not IS_JOB:
        (FOLDER / "wrong").touch()
