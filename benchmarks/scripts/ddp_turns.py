"""Steps of DDP in turns with another job, so that both see the same machine.

    python -m benchmarks.scripts.ddp_turns FOLDER SIDES SIDE TURNS STEPS

``SIDE``, one of ``SIDES`` (with commas): ``plain`` (the process group is that of the environment), ``elastic``
(``elastic.init()``, and a State that is asked for changes of hosts after each step) or ``torchft``. ``FOLDER/turn`` has
the number of the present turn; the sides take turns in the order of ``SIDES``. Rank 0 adds the median step of each of
its turns to ``FOLDER/SIDE``, in seconds.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.scripts.torchft_hosts import of_this_group

FOLDER, SIDES, SIDE = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3]
TURNS, STEPS = int(sys.argv[4]), int(sys.argv[5])
LIMIT_S = 120.0
LOOK_S = 0.002


def turn() -> int:
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int((FOLDER / "turn").read_text())
    return -1


def wait_for(number: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while turn() < number:
        if time.monotonic() > deadline:
            raise SystemExit(f"turn {number} did not come")
        time.sleep(LOOK_S)


def pass_on(number: int) -> None:
    fresh = FOLDER / f"turn.{SIDE}"
    fresh.write_text(str(number))
    fresh.replace(FOLDER / "turn")


def take_turns(step: Callable[[], object], rank: int, meet: Callable[[], object]) -> None:
    """All turns of this side. ``meet``: waits for its other rank."""
    (FOLDER / f"here.{SIDE}.{rank}").touch()
    for number in range(SIDES.index(SIDE), len(SIDES) * TURNS, len(SIDES)):
        wait_for(number)
        meet()
        times = []
        for _ in range(STEPS):
            begun = time.perf_counter()
            step()
            times.append(time.perf_counter() - begun)
        meet()
        if rank == 0:
            with (FOLDER / SIDE).open("a") as file:
                file.write(f"{statistics.median(times)}\n")
            pass_on(number + 1)


def main() -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.ones(32, 256)

    def step(ddp: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad()
        ddp(data).sum().backward()
        optimizer.step()

    if SIDE == "plain":
        dist.init_process_group("gloo")
        ddp = DistributedDataParallel(model)
        take_turns(lambda: step(ddp, optimizer), dist.get_rank(), dist.barrier)
        os._exit(0)
    if SIDE == "torchft":
        group = of_this_group(model, optimizer)
        step(group.ddp, group.optimizer)
        while group.manager.num_participants() < 2:
            step(group.ddp, group.optimizer)
        take_turns(lambda: step(group.ddp, group.optimizer), group.number, lambda: None)  # a step is a meeting
        os._exit(0)
    import hvd_elastic_ext.torch as elastic

    elastic.init()
    state = elastic.TorchState(model=model, optimizer=optimizer)

    @elastic.run
    def train(state: Any) -> None:
        ddp = DistributedDataParallel(model)

        def step_and_look() -> None:
            step(ddp, optimizer)
            state.check_host_updates()

        take_turns(step_and_look, dist.get_rank(), dist.barrier)

    train(state)


if __name__ == "__main__":
    main()
