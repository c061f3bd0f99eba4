"""One training script for every launcher: ``script.py DIRECTORY STEPS PAUSE``. It uses only the public API.

It writes its events to ``DIRECTORY/PID.jsonl``, one line for each. It pauses after each step until the file
``DIRECTORY/hurry`` exists.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import mse_loss

import hvd_elastic_ext.torch as elastic

DIRECTORY, STEPS, PAUSE = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
COMMIT_EVERY = 5
TRUTH = torch.tensor([[1.0, -2.0, 3.0]])


def tell(event: str, **facts: object) -> None:
    line = {"event": event, "rank": elastic.rank(), "size": elastic.size(), "pid": os.getpid(), **facts}
    with (DIRECTORY / f"{os.getpid()}.jsonl").open("a") as journal:
        journal.write(json.dumps(line) + "\n")


torch.set_num_threads(1)
elastic.init()
torch.manual_seed(1000 + os.getpid())  # each process begins with other weights; the first sync makes them equal
model = torch.nn.Linear(3, 1)
optimizer = elastic.wrap(torch.optim.Adam(model.parameters(), lr=0.3), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, step=0)


def batch(step: int) -> torch.Tensor:
    """Return this rank's part of a batch of 12 that depends only on the step."""
    whole = torch.randn(12, 3, generator=torch.Generator().manual_seed(step))
    return whole[elastic.rank() :: elastic.size()]


@elastic.run
def train(state: elastic.TorchState) -> None:
    tell("begin", step=state.step, fingerprint=state.fingerprint())
    while state.step < STEPS:
        data = batch(state.step)
        optimizer.zero_grad()
        mse_loss(model(data), data @ TRUTH.t()).backward()
        optimizer.step()
        state.step += 1
        tell("step", step=state.step)
        if state.step % COMMIT_EVERY == 0:
            state.commit()
            tell("committed", step=state.step)
        if not (DIRECTORY / "hurry").exists():
            time.sleep(PAUSE)


train(state)
state.commit()
error = (model.weight - TRUTH).abs().max().item()
tell("done", step=state.step, fingerprint=state.fingerprint(), weights=model.weight.flatten().tolist(), error=error)
