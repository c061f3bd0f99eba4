"""Calls its training function several times, with a result of 1 MB each, and stamps the steps of the last call.

    calls.py STAMPS BEGUN CALLS

After CALLS calls of one step each it trains until it is ended. Lines of STAMPS: see ``benchmarks/steps.py``. BEGUN has
the time at which each process began its first call.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

STAMPS, BEGUN, CALLS = sys.argv[1], sys.argv[2], int(sys.argv[3])
WEIGHTS = 500
"""Squared, weights of 1 MB."""
LIMIT_S = 240.0
PAUSE_S = 0.02


def add(path: str, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def stamp(step: int) -> None:
    host = os.environ["HOROVOD_HOSTNAME"]
    add(STAMPS, f"{time.monotonic():.6f} {os.getpid()} {hvd.rank()} {hvd.size()} {step} {host}\n")


@elastic.run
def fit(state: Any, model: torch.nn.Module, optimizer: Any, *, is_last: bool) -> float:
    ends = time.monotonic() + LIMIT_S  # ends even if the benchmark hangs
    while state.step < 1 or (is_last and time.monotonic() < ends):
        optimizer.zero_grad()
        model(torch.ones(1, WEIGHTS)).sum().backward()
        optimizer.step()
        state.step += 1
        state.commit()
        if is_last:
            stamp(state.step)
            time.sleep(PAUSE_S)
    return 0.5


hvd.init()
torch.set_num_threads(1)
torch.optim.SGD([torch.zeros(1)])  # the first one imports much
add(BEGUN, f"{time.monotonic():.6f}\n")
for call in range(CALLS + 1):
    torch.manual_seed(call)
    model = torch.nn.Linear(WEIGHTS, WEIGHTS, bias=False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model.named_parameters())
    fit(elastic.TorchState(model=model, optimizer=optimizer, step=0), model, optimizer, is_last=call == CALLS)
