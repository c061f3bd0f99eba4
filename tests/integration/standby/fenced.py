"""Two ranks with a connection of user code beside Horovod's. A fence must not close it."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

import horovod.torch as hvd
import torch

import hvd_elastic_ext.torch as elastic

PORT = int(sys.argv[1])

hvd.init()
planned = hvd.rank()
listener = socket.create_server(("127.0.0.1", PORT)) if planned == 0 else None
users: list[socket.socket] = []


def connect() -> None:
    """Connect the ranks, as user code may do."""
    if listener is not None:
        users.append(listener.accept()[0])
    else:
        users.append(socket.create_connection(("127.0.0.1", PORT)))


thread = threading.Thread(target=connect)
if listener is not None:
    thread.start()

model = torch.nn.Linear(2, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, step=0)


@elastic.run
def train(state: elastic.TorchState) -> None:
    if listener is None and not users:
        thread.start()
    while state.step < 400:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.step += 1
        time.sleep(0.01)
        print("step", state.step, "rank", hvd.rank(), "size", hvd.size(), flush=True)
        if state.step % 10 == 0:
            state.commit()
        if hvd.size() == 1 and users:
            users[0].sendall(b"still open")
            print("the user's connection is open to", os.getpid(), flush=True)
            return


train(state)
