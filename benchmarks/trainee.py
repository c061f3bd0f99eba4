"""The smallest training, the same for stock Horovod and for ours. It stamps each of its steps.

    trainee.py SIDE STAMPS SECONDS [HOST PAUSE]

Each step adds a line to STAMPS; see ``benchmarks/steps.py``. On HOST it pauses before large imports. Each line of
STAMPS.notified has the time when a process learned of a change of hosts, by an update or by an interrupt.
Each step pauses for $BENCH_PAUSE_S (0.02), and for $BENCH_SHARED_S (0), which all ranks share. Every tenth one
broadcasts $BENCH_BROADCAST bytes (0); each line of STAMPS.broadcasts has its number and its seconds. Only State and
decorator differ between the sides.
"""

import importlib
import os
import sys
import time
from typing import Any

if sys.argv[4:5] == [os.environ["HOROVOD_HOSTNAME"]]:
    time.sleep(float(sys.argv[5]))  # as on a host that fetches an image, mounts a disk, or indexes a data set

import horovod.torch as hvd
import torch
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HostsUpdatedInterrupt

SIDE, STAMPS, LIMIT_S = sys.argv[1], sys.argv[2], float(sys.argv[3])
PAUSE_S = float(os.environ.get("BENCH_PAUSE_S", "0.02"))
SHARED_S = float(os.environ.get("BENCH_SHARED_S", "0"))
BROADCAST = int(os.environ.get("BENCH_BROADCAST", "0"))
BROADCAST_EVERY = 10
COMMIT_EVERY = 5

elastic = importlib.import_module("hvd_elastic_ext.torch" if SIDE == "ours" else "horovod.torch.elastic")

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)
stamps, notified, broadcasts = (
    os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for path in (STAMPS, f"{STAMPS}.notified", f"{STAMPS}.broadcasts")
)
started = time.monotonic()


def stamp() -> None:
    """Write a stamp by one call, so that lines of several processes never mix."""
    who = f"{os.getpid()} {hvd.rank()} {hvd.size()} {state.count} {os.environ['HOROVOD_HOSTNAME']}"
    os.write(stamps, f"{time.monotonic():.6f} {who}\n".encode())


def note_change() -> None:
    """Note that this process has learned of a change of hosts."""
    os.write(notified, f"{time.monotonic():.6f} {os.getpid()}\n".encode())


def broadcast() -> None:
    """Note how long a broadcast takes, by a name that Horovod does not know yet, as after a world has formed."""
    began = time.monotonic()
    hvd.broadcast_(torch.zeros(BROADCAST, dtype=torch.uint8), 0, name=f"broadcast.{state.count}")
    os.write(broadcasts, f"{state.count} {time.monotonic() - began:.6f}\n".encode())


class Listener:
    """Listens beside the State at Horovod's notification manager."""

    def on_hosts_updated(self, *_: object) -> None:
        note_change()

    if SIDE == "ours":  # our updates are numbered
        on_hosts_update = on_hosts_updated


def train(state: Any) -> None:
    try:
        steps(state)
    except HostsUpdatedInterrupt:
        note_change()
        raise


def steps(state: Any) -> None:
    while time.monotonic() < started + LIMIT_S:  # ends even if the benchmark hangs
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.count += 1
        stamp()
        if BROADCAST and state.count % BROADCAST_EVERY == 0:
            broadcast()
        if state.count % COMMIT_EVERY == 0:
            state.commit()
        else:
            state.check_host_updates()
        time.sleep(PAUSE_S + SHARED_S / hvd.size())


notification_manager.register_listener(Listener())
elastic.run(train)(state)
