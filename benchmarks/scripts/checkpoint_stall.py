"""Trains with a large State of which checkpoints are made; reports when steps and commits began and ended.

    checkpoint_stall.py OUTPUT SIDE PARAMETERS STEPS EVERY FOLDER

A step takes about 60 ms on a single rank and ends with an allreduce; every EVERY steps there is a commit. For ours,
launcher and agent make the checkpoints. For stock, rank 0 does, alternately by ``torch.save`` with fsync, and by
``torch.distributed.checkpoint.async_save`` in the background. Times are of the monotonic clock; rank 0 reports.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import torch
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.scripts.common import barrier, library, tell

WORK_S = 0.05


def main(output: str, side: str, parameters: int, steps: int, every: int, folder: Path) -> None:
    hvd.init()
    torch.set_num_threads(1)
    large = torch.nn.ParameterList([torch.full((parameters,), 0.5)])
    adam = torch.optim.Adam(large.parameters())
    large[0].grad = torch.ones(parameters)
    adam.step()
    large[0].grad = None
    small = torch.nn.Linear(16, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(small.parameters(), lr=1e-4), small.named_parameters())
    state = library(side).TorchState(optimizer=optimizer, small=small, large=large, adam=adam, count=0)
    measured: dict[str, list[float]] = {name: [] for name in ("steps", "commits", "saves", "async", "written")}

    def train(state: Any) -> None:
        saver = Saver(large, adam, folder, measured) if side == "stock" and hvd.rank() == 0 else None
        while state.count < steps:
            begun = time.monotonic()
            busy_until = begun + WORK_S
            while time.monotonic() < busy_until:
                torch.mm(BUSY, BUSY)
            optimizer.zero_grad()
            small(torch.ones(1, 16)).sum().backward()
            optimizer.step()
            measured["steps"] += [begun, time.monotonic()]
            state.count += 1
            if state.count % every == 0:
                begun = time.monotonic()
                state.commit()
                measured["commits"] += [begun, time.monotonic()]
                if saver is not None:
                    saver.save(state.count // every)
                barrier()

    run = library(side).run if side == "ours" else hvd.elastic.run
    run(train)(state)
    if hvd.rank() == 0:
        tell(output, measured)
    barrier()


BUSY = torch.ones(96, 96)


class Saver:
    """Saves as users of the stock State do: alternately in the training loop and in the background."""

    def __init__(self, large: Any, adam: Any, folder: Path, measured: dict[str, list[float]]) -> None:
        self._large, self._adam, self._folder, self._measured = large, adam, folder, measured
        self._writing: Any = None
        self._begun = 0.0

    def save(self, turn: int) -> None:
        if self._writing is not None:
            if not self._writing.done():
                return
            self._measured["written"] += [self._begun, time.monotonic()]
            self._writing = None
        begun = time.monotonic()
        held = {"model": self._large.state_dict(), "adam": self._adam.state_dict()}
        if turn % 2:
            with Path(self._folder, f"save-{turn}.pt").open("wb") as file:
                torch.save(held, file)
                file.flush()
                os.fsync(file.fileno())
            self._measured["saves"] += [begun, time.monotonic()]
        else:
            self._begun = begun
            self._writing = async_save(held, checkpoint_id=self._folder / f"async-{turn}", no_dist=True)
            self._measured["async"] += [begun, time.monotonic()]


if __name__ == "__main__":
    parameters, steps, every = map(int, sys.argv[3:6])
    main(sys.argv[1], sys.argv[2], parameters, steps, every, Path(sys.argv[6]))
