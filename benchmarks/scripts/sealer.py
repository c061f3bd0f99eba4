"""Trains with a large State that is made durable now and then; says when steps and commits began and ended.

    sealer.py OUTPUT SIDE PARAMETERS STEPS EVERY FOLDER

A step takes about 60 ms on this rank alone and ends in an allreduce; after every so many steps there is a commit. Ours
is made durable by the launcher and the agent, who are asked for nothing here. On the stock side rank 0 does it, by
turns: ``torch.save`` and fsync in place, and ``torch.distributed.checkpoint.async_save``, which writes meanwhile.
Times are seconds of the monotonic clock; rank 0 tells its own.
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
    told: dict[str, list[float]] = {name: [] for name in ("steps", "commits", "saves", "async", "written")}

    def train(state: Any) -> None:
        saver = Saver(large, adam, folder, told) if side == "stock" and hvd.rank() == 0 else None
        while state.count < steps:
            begun = time.monotonic()
            busy_until = begun + WORK_S
            while time.monotonic() < busy_until:
                torch.mm(BUSY, BUSY)
            optimizer.zero_grad()
            small(torch.ones(1, 16)).sum().backward()
            optimizer.step()
            told["steps"] += [begun, time.monotonic()]
            state.count += 1
            if state.count % every == 0:
                begun = time.monotonic()
                state.commit()
                told["commits"] += [begun, time.monotonic()]
                if saver is not None:
                    saver.save(state.count // every)
                barrier()

    run = library(side).run if side == "ours" else hvd.elastic.run
    run(train)(state)
    if hvd.rank() == 0:
        tell(output, told)
    barrier()


BUSY = torch.ones(96, 96)


class Saver:
    """What users of the stock State do: by turns in place, and in the background."""

    def __init__(self, large: Any, adam: Any, folder: Path, told: dict[str, list[float]]) -> None:
        self._large, self._adam, self._folder, self._told = large, adam, folder, told
        self._writing: Any = None
        self._begun = 0.0

    def save(self, turn: int) -> None:
        if self._writing is not None:
            if not self._writing.done():
                return
            self._told["written"] += [self._begun, time.monotonic()]
            self._writing = None
        begun = time.monotonic()
        held = {"model": self._large.state_dict(), "adam": self._adam.state_dict()}
        if turn % 2:
            with Path(self._folder, f"save-{turn}.pt").open("wb") as file:
                torch.save(held, file)
                file.flush()
                os.fsync(file.fileno())
            self._told["saves"] += [begun, time.monotonic()]
        else:
            self._begun = begun
            self._writing = async_save(held, checkpoint_id=self._folder / f"async-{turn}", no_dist=True)
            self._told["async"] += [begun, time.monotonic()]


if __name__ == "__main__":
    parameters, steps, every = map(int, sys.argv[3:6])
    main(sys.argv[1], sys.argv[2], parameters, steps, every, Path(sys.argv[6]))
