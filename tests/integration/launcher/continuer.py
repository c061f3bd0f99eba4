"""A job that continues from an existing checkpoint, which only one of its processes can see: FILES/RANK.pt.

Each rank prints what it begins with, and trains until a file named ``stop`` exists.
"""

import hashlib
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = elastic.wrap(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, epoch=0, begun=0)
loaded = elastic.load_checkpoint(
    state, f"{sys.argv[1]}/{hvd.rank()}.pt", names={"model": "state_dict", "optimizer": "optimizer", "epoch": "epoch"}
)


@elastic.run
def train(state: elastic.TorchState) -> None:
    moments = optimizer.state_dict()["state"][0]["exp_avg"]
    digest = hashlib.sha256(model.weight.detach().numpy().tobytes() + moments.numpy().tobytes()).hexdigest()[:16]
    sys.stdout.write(f"began loaded={loaded} epoch={state.epoch} weights={digest} begun={state.begun}\n")
    state.begun += 1
    while not Path("stop").exists():
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.epoch += 1
        state.commit()
        time.sleep(0.05)


train(state)
