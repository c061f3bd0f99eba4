"""The smallest training there is, for stock Horovod and for ours alike: it stamps each of its steps.

    trainee.py SIDE STAMPS SECONDS [HOST PAUSE]

One line a step is appended to STAMPS; see ``benchmarks/steps.py``. On HOST it pauses
before it imports anything large. A line in STAMPS.told says that this process has learned of a change of hosts:
it was told, or interrupted. Both sides do the very same: nothing but State and decorator differ.
"""

import importlib
import os
import sys
import time
from typing import Any

if sys.argv[4:5] == [os.environ["HOROVOD_HOSTNAME"]]:
    time.sleep(float(sys.argv[5]))  # a host that has an image to fetch, a disk to mount, a data set to index

import horovod.torch as hvd
import torch
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HostsUpdatedInterrupt

SIDE, STAMPS, LIMIT_S = sys.argv[1], sys.argv[2], float(sys.argv[3])
PAUSE_S = 0.02
COMMIT_EVERY = 5

elastic = importlib.import_module("hvd_elastic_ext.torch" if SIDE == "ours" else "horovod.torch.elastic")

hvd.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)
stamps, told = (os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for path in (STAMPS, f"{STAMPS}.told"))
started = time.monotonic()


def stamp() -> None:
    """One write a line, so that processes never mix theirs."""
    who = f"{os.getpid()} {hvd.rank()} {hvd.size()} {state.count} {os.environ['HOROVOD_HOSTNAME']}"
    os.write(stamps, f"{time.monotonic():.6f} {who}\n".encode())


def know() -> None:
    """This process has learned of a change of hosts."""
    os.write(told, f"{time.monotonic():.6f} {os.getpid()}\n".encode())


class Listener:
    """Beside the State, at Horovod's notification manager."""

    def on_hosts_updated(self, *_: object) -> None:
        know()

    if SIDE == "ours":  # such updates are numbered
        on_hosts_update = on_hosts_updated


def train(state: Any) -> None:
    try:
        steps(state)
    except HostsUpdatedInterrupt:
        know()
        raise


def steps(state: Any) -> None:
    while time.monotonic() < started + LIMIT_S:  # whatever happens to the benchmark, this ends
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.count += 1
        stamp()
        if state.count % COMMIT_EVERY == 0:
            state.commit()
        else:
            state.check_host_updates()
        time.sleep(PAUSE_S)


notification_manager.register_listener(Listener())
elastic.run(train)(state)
