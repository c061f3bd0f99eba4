"""Measures a step of one global batch on two ranks, of which rank 1 needs twice as long for a sample.

    unlike_ranks.py OUTPUT SIDE TOTAL STEPS MICROSECONDS

A sample takes MICROSECONDS on rank 0. Three figures, of STEPS steps with a commit each: with equal shares; with shares
by measured speed, after some steps to adapt (stock has none: equal ones); and with two thirds and one third from the
start, in a bare loop without commits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.scripts.common import barrier, library, tell

ADAPTS: Final = 20
"""Steps before those that are measured. The ranks compare their times after 8."""
EPOCH: Final = 1000
"""Global batches of an epoch, which is never done."""


class Training:
    """One model on one side. ``name`` makes the names of its operations unique."""

    def __init__(self, total: int, sample_s: float, name: str) -> None:
        torch.manual_seed(1)
        self.total, self.sample_s = total, sample_s * (1 + hvd.rank())
        self.data = TensorDataset(torch.randn(total * EPOCH, 8))
        self.model = torch.nn.Linear(8, 1)
        named = [(f"{name}.{key}", parameter) for key, parameter in self.model.named_parameters()]
        self.optimizer = hvd.DistributedOptimizer(torch.optim.SGD(self.model.parameters(), lr=1e-4), named)

    def backward(self, batch: torch.Tensor, weight: float) -> None:
        """A pass that takes as long as this rank needs for these samples."""
        (self.model(batch).mean() * weight).backward()
        time.sleep(self.sample_s * len(batch))

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def in_shares(self, shares: str) -> Iterator[None]:
        """Steps of ours."""
        elastic = library("ours")
        sampler = elastic.ElasticSampler(self.data)
        state = elastic.TorchState(model=self.model, optimizer=self.optimizer, sampler=sampler)
        state.sync()
        batches = elastic.GlobalBatches(sampler, self.total, shares=shares)
        for step in batches.steps(DataLoader(self.data, batch_sampler=batches)):
            for (batch,), weight in step:
                self.backward(batch, weight)
            self.step()
            state.commit()
            yield

    def of_stock(self) -> Iterator[None]:
        """Steps of stock."""
        elastic: Any = library("stock")
        sampler = hvd.elastic.ElasticSampler(self.data)
        state = elastic.TorchState(model=self.model, optimizer=self.optimizer, sampler=sampler)
        state.sync()
        for number, (batch,) in enumerate(DataLoader(self.data, self.total // 2, sampler=sampler)):
            self.backward(batch, 1.0)
            self.step()
            sampler.record_batch(number, self.total // 2)
            state.commit()
            yield

    def best(self) -> Iterator[None]:
        """Steps with the shares that are right for these two ranks, and nothing else."""
        rows = self.total * (2 - hvd.rank()) // 3
        while True:
            self.backward(self.data[:rows][0], 2 * rows / self.total)
            self.step()
            yield


def mean(steps: Iterator[None], count: int) -> float:
    """Return the mean seconds of ``count`` steps after the first :data:`ADAPTS`."""
    for _ in islice(steps, ADAPTS):
        pass
    barrier()
    begun = time.perf_counter()
    for _ in islice(steps, count):
        pass
    return (time.perf_counter() - begun) / count


def main(output: str, side: str, total: int, count: int, microseconds: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    found = {}
    for name in ("equal", "measured", "best"):
        training = Training(total, microseconds / 1e6, name)
        of_side = training.in_shares(name) if side == "ours" else training.of_stock()
        found[name] = [mean(training.best() if name == "best" else of_side, count)]
    if hvd.rank() == 0:
        tell(output, found)
    barrier()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
