"""Measures a training step with and without a check for host updates, in turns; one process per rank.

    check.py OUTPUT SIDE BLOCKS STEPS

A block is STEPS steps without the check, then STEPS with it. The difference of the two means is the cost of the check.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import horovod.torch as hvd
import torch

from benchmarks.scripts.common import barrier, library, tell

WIDTH = 256
PAUSE_S = 0.004
"""With this pause a step takes about 6 ms, as in a small real training, and the cores are not overloaded."""


def main(output: str, side: str, blocks: int, steps: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    batch = torch.randn(32, WIDTH)
    # The optimizer of the plain steps is in no State, so these steps contain none of our work.
    plain, kept = Training(batch, "plain"), Training(batch, "kept")
    state = library(side).TorchState(model=kept.model, optimizer=kept.optimizer, batch=0)
    state.sync()

    def step_and_look() -> None:
        kept()
        state.check_host_updates()

    mean(plain, steps)
    mean(step_and_look, steps)  # warm up
    without, having = [], []
    for _ in range(blocks):
        without.append(mean(plain, steps))
        having.append(mean(step_and_look, steps))
    if hvd.rank() == 0:
        tell(output, {"added": [b - a for a, b in zip(without, having, strict=True)], "step": without})
    barrier()


class Training:
    """A small model and its optimizer. A call makes one step."""

    def __init__(self, batch: torch.Tensor, name: str) -> None:
        self.batch = batch
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
        named = [(f"{name}.{key}", parameter) for key, parameter in self.model.named_parameters()]
        self.optimizer = hvd.DistributedOptimizer(torch.optim.SGD(self.model.parameters(), lr=1e-4), named)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).mean().backward()
        self.optimizer.step()
        time.sleep(PAUSE_S)


def mean(step: Callable[[], None], steps: int) -> float:
    barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begun) / steps


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
