"""The smallest training with DDP under ``--engine torch``: the steps, commits, stamps and broadcasts of ``trainee.py``.

ddp_trainee.py STAMPS SECONDS
"""

import os
import signal
import sys
import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import hvd_elastic_ext.torch as elastic

STAMPS, LIMIT_S = sys.argv[1], float(sys.argv[2])
PAUSE_S = 0.02
BROADCAST = int(os.environ.get("BENCH_BROADCAST", "0"))
BROADCAST_EVERY = 10
COMMIT_EVERY = 5

if sys.argv[3:] == [os.environ["HOROVOD_HOSTNAME"]]:
    from hvd_elastic_ext.worker.comms.torch_in_place import AgentStore

    AgentStore.get = lambda store, key: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign, return-value, assignment]

elastic.init()
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)
stamps, broadcasts = (
    os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for path in (STAMPS, f"{STAMPS}.broadcasts")
)
started = time.monotonic()


@elastic.run
def train(state: Any) -> None:
    ddp = DistributedDataParallel(model, init_sync=False)
    while time.monotonic() < started + LIMIT_S:
        optimizer.zero_grad()
        ddp(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        state.count += 1
        who = f"{os.getpid()} {elastic.rank()} {elastic.size()} {state.count} {os.environ['HOROVOD_HOSTNAME']}"
        os.write(stamps, f"{time.monotonic():.6f} {who}\n".encode())
        if BROADCAST and state.count % BROADCAST_EVERY == 0:
            began = time.monotonic()
            torch.distributed.broadcast(torch.zeros(BROADCAST, dtype=torch.uint8), 0)
            os.write(broadcasts, f"{state.count} {time.monotonic() - began:.6f}\n".encode())
        if state.count % COMMIT_EVERY == 0:
            state.commit()
        else:
            state.check_host_updates()
        time.sleep(PAUSE_S)


train(state)
