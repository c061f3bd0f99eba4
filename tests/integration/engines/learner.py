"""One training script for every engine. It counts steps to COUNT, and prints a line for each world that it enters.

It does not know which launcher has started it. If the second argument is ``plain``, its State has plain values only.
"""

import os
import sys
import time
from pathlib import Path

import torch

import hvd_elastic_ext.torch as elastic

COUNT, PLAIN = int(sys.argv[1]), sys.argv[2:] == ["plain"]

torch.set_num_threads(1)
elastic.init()
torch.manual_seed(7 + elastic.rank())
model = torch.nn.Linear(4, 1)
optimizer = elastic.wrap(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model.named_parameters())
state = elastic.TorchState(count=0) if PLAIN else elastic.TorchState(model=model, optimizer=optimizer, count=0)


def last() -> int:
    """Return the last step. It is the same on every rank if the file is written well before that step. Otherwise one
    rank would wait for the others."""
    try:
        return min(COUNT, int(Path("stop").read_text()))
    except FileNotFoundError:
        return COUNT


@elastic.run
def train(state: elastic.TorchState) -> None:
    sys.stdout.write(f"goes on count={state.count} size={elastic.size()} pid={os.getpid()}\n")
    sys.stdout.flush()
    while state.count < last():
        optimizer.zero_grad()
        model(torch.ones(1, 4)).square().sum().backward()
        optimizer.step()
        state.count += 1
        if state.count % 5 == 0:
            state.commit()
        else:
            state.check_host_updates()
        time.sleep(0.02)


train(state)
sys.stdout.write(f"done count={state.count} fingerprint={state.fingerprint()}\n")
