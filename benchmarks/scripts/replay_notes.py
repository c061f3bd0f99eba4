"""Measures a training step with and without ``run --replay``, in turns, and the notes of 1,000 steps; one process.

    replay_notes.py OUTPUT SIDE BLOCKS STEPS

A block is STEPS steps without, then STEPS with. The difference of the two medians is the cost. The learning rate
changes with each step, so the notes are as long as they can be.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from statistics import median

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader

import hvd_elastic_ext.torch as elastic
from benchmarks.scripts.common import tell
from hvd_elastic_ext.worker.replay import notes

WIDTH, TOTAL = 64, 16
NOTED: int = 1000


def main(output: str, side: str, blocks: int, steps: int) -> None:
    assert side == "ours"
    hvd.init()
    torch.set_num_threads(1)
    samples = blocks * steps * 2 + 2 * steps + NOTED
    without, having = Training("plain", samples * TOTAL), Training("noted", samples * TOTAL, replay=True)
    for training in (without, having):
        training.block(steps)  # warm up
    pairs = [(without.block(steps), having.block(steps)) for _ in range(blocks)]
    having.state.save()
    having.block(NOTED)
    recorder = having.state._keeper._recorder
    assert recorder is not None
    assert notes.count(recorder._done) in (NOTED - 1, NOTED), "all steps but the one under way are noted"
    found = {"added": [b - a for a, b in pairs], "step": [a for a, _ in pairs]}
    tell(output, {**found, "notes_mb": [len(notes.encode(notes.joined(recorder._done))) / 1e6]})


class Training:
    """A small model, and global batches for it."""

    def __init__(self, name: str, samples: int, *, replay: bool = False) -> None:
        os.environ["HVD_ELASTIC_REPLAY"] = str(int(replay))
        self.data = torch.utils.data.TensorDataset(torch.zeros(samples, 1).expand(samples, WIDTH))
        self.model = torch.nn.Linear(WIDTH, 1)
        named = [(f"{name}.{key}", parameter) for key, parameter in self.model.named_parameters()]
        plain = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.optimizer = hvd.DistributedOptimizer(plain, named)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9999)
        sampler = elastic.ElasticSampler(self.data, shuffle=False)
        self.state = elastic.TorchState(model=self.model, optimizer=self.optimizer, sampler=sampler)
        self.state.sync()
        self.steps = self.train(elastic.GlobalBatches(sampler, TOTAL))

    def train(self, batches: elastic.GlobalBatches) -> Iterator[None]:
        for step in batches.steps(DataLoader(self.data, batch_sampler=batches)):
            for (rows,), weight in step:
                (self.model(rows).mean() * weight).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            yield

    def block(self, steps: int) -> float:
        """Do steps, and return the median of their times."""
        took = []
        for _ in range(steps):
            begun = time.perf_counter()
            next(self.steps)
            took.append(time.perf_counter() - begun)
        return median(took)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
