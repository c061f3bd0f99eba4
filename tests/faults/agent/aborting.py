"""Real training with a real State, which Horovod aborts once: the rendezvous of the next world does not answer.

    aborting.py STEPS MARKER

The first process creates the file MARKER and is aborted. Each process prints "from N steps" at its start. The last one
prints two fingerprints at the end: its own, and that of the same training without an abort.
"""

import os
import sys
from pathlib import Path

import horovod.torch as hvd
import torch
from torch import nn

import hvd_elastic_ext.torch as elastic

ABORT_AFTER, COMMIT_EVERY = 8, 3


def step(state: elastic.TorchState) -> None:
    state.optimizer.zero_grad()
    nn.functional.dropout(state.model(torch.ones(4, 8)), 0.3).pow(2).sum().backward()
    state.optimizer.step()
    state.batch += 1


@elastic.run
def train(state: elastic.TorchState, steps: int, *, aborts: bool) -> None:
    print(f"from {state.batch} steps", flush=True)
    while state.batch < steps:
        step(state)
        if state.batch % COMMIT_EVERY == 0:
            state.commit()
        if aborts and state.batch == ABORT_AFTER:
            # As if the launcher were gone: Horovod ends the process, from a thread of its own.
            os.environ |= {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": "9"}
            os.environ |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo", "HOROVOD_ELASTIC": "1"}
            os.environ |= {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0"}
            os.environ |= {"HOROVOD_LOCAL_SIZE": "1", "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "2"}
            os.environ |= {"HOROVOD_HOSTNAME": "localhost"}
            hvd.shutdown()
            hvd.init()


def begun(seed: int) -> elastic.TorchState:
    torch.manual_seed(seed)
    model = nn.Linear(8, 8)
    return elastic.TorchState(model=model, optimizer=torch.optim.AdamW(model.parameters()), batch=0)


def main(steps: int, marker: Path) -> None:
    torch.set_num_threads(1)
    hvd.init()
    first = not marker.exists()
    marker.touch()
    # Like any new process, the second one begins with other random weights and generators.
    state = begun(1 if first else 2)
    train(state, steps, aborts=first)
    undisturbed = begun(1)
    assert undisturbed.batch == 0
    while undisturbed.batch < steps:
        step(undisturbed)
    print(state.fingerprint(), undisturbed.fingerprint(), sep="\n", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
