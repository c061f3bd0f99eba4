"""Steps of DDP in turns with another job, so that both see the same machine.

    python -m benchmarks.scripts.ddp_turns FOLDER SIDE TURNS STEPS

``SIDE``: ``plain`` (the process group is that of the environment) or ``elastic`` (``elastic.init()``, and a State that
is asked for changes of hosts after each step). ``FOLDER/turn`` has the number of the present turn: plain has the even
ones. Rank 0 adds the median step of each of its turns to ``FOLDER/SIDE``, in seconds.
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

FOLDER, SIDE, TURNS, STEPS = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
MINE = ("plain", "elastic").index(SIDE)
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


def steps(model: nn.Module, optimizer: Any, after: Callable[[], object]) -> None:
    """All turns of this side."""
    ddp = DistributedDataParallel(model)
    data = torch.ones(32, 256)
    (FOLDER / f"here.{SIDE}.{dist.get_rank()}").touch()
    for number in range(MINE, 2 * TURNS, 2):
        wait_for(number)
        dist.barrier()
        times = []
        for _ in range(STEPS):
            begun = time.perf_counter()
            optimizer.zero_grad()
            ddp(data).sum().backward()
            optimizer.step()
            after()
            times.append(time.perf_counter() - begun)
        dist.barrier()
        if dist.get_rank() == 0:
            with (FOLDER / SIDE).open("a") as file:
                file.write(f"{statistics.median(times)}\n")
            pass_on(number + 1)


def main() -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if SIDE == "plain":
        dist.init_process_group("gloo")
        steps(model, optimizer, lambda: None)
        os._exit(0)
    import hvd_elastic_ext.torch as elastic

    elastic.init()
    state = elastic.TorchState(model=model, optimizer=optimizer)
    elastic.run(lambda state: steps(model, optimizer, state.check_host_updates))(state)


if __name__ == "__main__":
    main()
