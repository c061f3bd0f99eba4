"""The training of ``spot-trace``, the same for all: a small model, real steps, and a pause in place of a device's work.

    spot.py ours|stock|torchrun STAMPS SAVED

Stamps are like those of ``benchmarks/trainee.py``. Stock and torchrun save to the file SAVED at an interval of steps,
and start from it; for ours the launcher does that.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

SIDE, STAMPS, SAVED = sys.argv[1], sys.argv[2], Path(sys.argv[3])
BATCH = 64
PAUSE_S = 0.03
COMMIT_EVERY = 5
SAVE_EVERY = 40
"""Steps, about 2 s: see docs/benchmarks.md."""

torch.set_num_threads(1)
torch.manual_seed(1)
model: Any = torch.nn.Sequential(
    torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)
)
adam = torch.optim.Adam(model.parameters(), lr=1e-3)
stamps = os.open(STAMPS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def stamp(rank: int, size: int, step: int) -> None:
    """Write a stamp by one call, so that lines of several processes never mix."""
    who = f"{os.getpid()} {rank} {size} {step} {os.environ['HOROVOD_HOSTNAME']}"
    os.write(stamps, f"{time.monotonic():.6f} {who}\n".encode())


def step(net: Any, optimizer: Any, number: int, rank: int) -> None:
    """Do one step, with data of its own."""
    source = torch.Generator().manual_seed(number * 1000 + rank)
    inputs, labels = torch.randn(BATCH, 256, generator=source), torch.randint(10, (BATCH,), generator=source)
    optimizer.zero_grad()
    loss: Any = torch.nn.functional.cross_entropy(net(inputs), labels)
    loss.backward()
    optimizer.step()
    time.sleep(PAUSE_S)


def save(step: int) -> None:
    """Save durably and atomically."""
    fresh = SAVED.with_name(f"{SAVED.name}.new")
    with fresh.open("wb") as file:
        torch.save({"model": model.state_dict(), "adam": adam.state_dict(), "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(SAVED)


def saved() -> int:
    """Load the saved state. Return its number of steps."""
    if not SAVED.exists():
        return 0
    told = torch.load(SAVED, weights_only=True)
    model.load_state_dict(told["model"])
    adam.load_state_dict(told["adam"])
    return int(told["step"])


def with_horovod() -> None:
    """Train with ours or stock. Only State, decorator and saving differ."""
    hvd: Any = importlib.import_module("horovod.torch")
    elastic: Any = importlib.import_module("hvd_elastic_ext.torch" if SIDE == "ours" else "horovod.torch.elastic")
    hvd.init()
    begin = saved() if SIDE == "stock" else 0
    optimizer = hvd.DistributedOptimizer(adam, model.named_parameters())
    state = elastic.TorchState(model=model, optimizer=optimizer, count=begin)

    def train(state: Any) -> None:
        while True:
            step(model, optimizer, state.count, hvd.rank())
            state.count += 1
            stamp(hvd.rank(), hvd.size(), state.count)
            if SIDE == "stock" and state.count % SAVE_EVERY == 0 and hvd.rank() == 0:
                save(state.count)
            if state.count % COMMIT_EVERY == 0:
                state.commit()
            else:
                state.check_host_updates()

    elastic.run(train)(state)


def with_torchrun() -> None:
    """Train with torchrun. On SIGTERM all ranks save; ranks with the signal end, and the others start again from that
    state."""
    dist: Any = importlib.import_module("torch.distributed")
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    count = saved()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    net = torch.nn.parallel.DistributedDataParallel(model)
    while True:
        step(net, adam, count, rank)
        count += 1
        stamp(rank, size, count)
        somebody = torch.tensor([float(bool(told))])
        dist.all_reduce(somebody, op=dist.ReduceOp.MAX)
        if rank == 0 and (count % SAVE_EVERY == 0 or somebody.item()):
            save(count)
        if somebody.item():
            dist.barrier()
            if told:
                sys.exit(0)


if __name__ == "__main__":
    with_torchrun() if SIDE == "torchrun" else with_horovod()
