"""A job in which every number depends on all earlier ones: dropout, momentum, a schedule, a random order of samples.

Counts to STEPS. Prints a digest of its state at each commit and at the end. Each step takes PAUSE_S. With a second
argument, its checkpoints have a format of their own (user_format.py).
"""

import hashlib
import os
import random
import sys
import time

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

STEPS = int(sys.argv[1])
PAUSE_S = float(os.environ.get("PAUSE_S", "0.02"))

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(7 + hvd.rank())
random.seed(7 + hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = elastic.wrap(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters())
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.999)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
more = {}
if sys.argv[2:]:
    import user_format

    more["checkpoint"] = user_format.functions(sys.argv[2], parts, lambda: state)
state = elastic.TorchState(**parts, count=0, **more)


def digest() -> str:
    """Return a hash of all on which the next step depends, except the moments, which change with the weights."""
    parts = [value.numpy().tobytes() for value in (*model.state_dict().values(), torch.get_rng_state())]
    return hashlib.sha256(b"".join([*parts, repr(random.getstate()).encode()])).hexdigest()[:16]


@elastic.run
def train(state: elastic.TorchState) -> None:
    while state.count < STEPS:
        inputs = torch.randn(4, 8) * random.random()
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        state.count += 1
        if state.count % 5 == 0:
            sys.stdout.write(f"at {state.count} {digest()}\n")
            state.commit()
        else:
            state.check_host_updates()
        time.sleep(PAUSE_S)


train(state)
sys.stdout.write(f"done {state.count} {digest()}\n")
