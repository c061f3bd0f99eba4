"""Counts steps to the number in the file LAST, and commits each. The file KEPT has a line for what rank 0 begins, what
it has committed, and where each world goes on.

    python steps.py LAST KEPT
"""

import sys
import time
from pathlib import Path

import torch

import hvd_elastic_ext.torch as elastic

LAST, KEPT = map(Path, sys.argv[1:3])

torch.set_num_threads(1)
elastic.init()
model = torch.nn.Linear(4, 1)
optimizer = elastic.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)


def last() -> int:
    """The file comes well before its step: a rank that sees it alone would end alone."""
    try:
        return int(LAST.read_text())
    except FileNotFoundError:
        return 10**9


def tell(what: str, *numbers: int) -> None:
    if elastic.rank() == 0:
        with KEPT.open("a") as file:
            file.write(f"{what} {' '.join(map(str, numbers))}\n")


@elastic.run
def train(state: elastic.TorchState) -> None:
    tell("world", elastic.size(), state.count)
    while state.count < last():
        tell("begins", state.count + 1)
        optimizer.zero_grad()
        model(torch.ones(1, 4)).square().sum().backward()
        optimizer.step()
        state.count += 1
        state.commit()
        tell("keeps", state.count)
        time.sleep(0.05)


train(state)
sys.stdout.write(f"done {state.count}\n")
