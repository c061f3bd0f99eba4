"""An elastic job for hosts that get notice: it commits, sometimes evaluates, and writes a trace.

    noticed.py TRACES SEED

Each process appends its steps to a file of its own in TRACES, which ``tests/faults/launcher/traces.py`` reads. SEED and
the step alone decide when it evaluates, and for how long. Sometimes all ranks do; sometimes rank 0 does, and the others
wait for it.
"""

from __future__ import annotations

import os
import random
import sys
import time

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

HOST = os.environ["HOROVOD_HOSTNAME"]
PAUSE_S = 0.1
COMMIT_EVERY = 5
EVALUATES = 0.05
"""Probability of an evaluation after a step."""
SHORT_S, LONG_S, LONG = (0.1, 2.0), (4.0, 7.0), 0.05
"""Shortest and longest seconds of a short and of a long evaluation, and the probability of a long one."""

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)
trace = os.open(f"{sys.argv[1]}/{HOST}-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def evaluate(step: int) -> None:
    """After some steps, neither train nor commit for a while."""
    chance = random.Random(f"{sys.argv[2]} {step}")
    if chance.random() < EVALUATES:
        long_s = chance.uniform(*(LONG_S if chance.random() < LONG else SHORT_S))
        if chance.random() < 0.5 or hvd.rank() == 0:
            time.sleep(long_s)


@elastic.run
def train(state: elastic.TorchState) -> None:
    while True:
        optimizer.zero_grad()
        # The mean of small whole numbers is exact for any number of ranks.
        model(torch.full((1, 4), float(state.count % 3 + 1))).sum().backward()
        optimizer.step()
        state.count += 1
        said = f"{time.monotonic():.6f} {hvd.size()} {hvd.rank()} {state.count} {state.fingerprint()}\n"
        os.write(trace, said.encode())
        if state.count % COMMIT_EVERY == 0:
            state.commit()
        else:
            state.check_host_updates()
        evaluate(state.count)
        time.sleep(PAUSE_S)


train(state)
