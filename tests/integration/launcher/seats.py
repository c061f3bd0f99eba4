"""An elastic job whose processes print at each step which device their local rank selects.

If the file ``broken`` in the working directory names the device of a process, that process fails. If ``leave`` does,
the process leaves, and removes the file.
"""

import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

VISIBLE = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
OWN = os.environ["HVD_ELASTIC_DEVICE"]


def told(name: str) -> bool:
    path = Path(name)
    return path.exists() and path.read_text() == OWN


def check() -> None:
    if told("broken"):
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if told("leave"):
        Path("leave").unlink()
        sys.stdout.flush()
        os._exit(0)


hvd.init()
print(f"new {OWN} sees {','.join(VISIBLE)} local {hvd.local_rank()}", flush=True)
check()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)


@elastic.run
def train(state: elastic.TorchState) -> None:
    while True:
        check()
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.count += 1
        assert elastic.local_rank() == hvd.local_rank()
        print(f"step {state.count} size {hvd.size()} {OWN} uses {VISIBLE[hvd.local_rank()]}", flush=True)
        if state.count % 5 == 0:
            state.commit()
        else:
            state.check_host_updates()
        time.sleep(0.05)


train(state)
