"""A job that calls commit() after every step. A commit takes COPY_S more, and a step STEP_S.

With PLAIN=1 it uses Horovod's own State and loop.
"""

import importlib
import os
import sys
import time
from typing import Any

import horovod.torch as hvd
import torch

elastic = hvd.elastic if os.environ.get("PLAIN") else importlib.import_module("hvd_elastic_ext.torch")
STEPS = int(sys.argv[1])
STEP_S = float(os.environ.get("STEP_S", "0.02"))
COPY_S = float(os.environ.get("COPY_S", "0"))


class Slow:
    """An object with a state that takes long to copy."""

    def state_dict(self) -> dict[str, Any]:
        time.sleep(COPY_S)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: the state is empty."""


hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, slow=Slow(), count=0)


@elastic.run
def train(state: Any) -> None:
    while state.count < STEPS:
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.count += 1
        time.sleep(STEP_S)
        state.commit()


train(state)
sys.stdout.write(f"done {state.count}\n")
