"""What the lives of ``killed_processes.py`` train with under torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn


def prepare() -> None:
    """Import what every fork needs: the first optimizer imports much of torch."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


@contextlib.contextmanager
def world() -> Iterator[None]:
    torch.set_num_threads(1)
    hvd.init()
    from tests.contract.worker.user_states import with_handlers

    with with_handlers():
        yield


def build(kind: str) -> Any:
    net = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with torch.no_grad():
        net.weight.zero_()
    optimizer.state[net.weight]["momentum_buffer"] = torch.zeros(64, 64)
    if kind == "unmodified":
        return hvd.elastic.TorchState(net, optimizer, batch=0, history=[])
    import hvd_elastic_ext.torch as elastic
    from tests.contract.worker.user_states_with_mixin import MIXED

    make = elastic.TorchState if kind == "ours" else MIXED[kind]
    return make(net, optimizer, batch=0, history=[])


def tensors(state: Any) -> list[torch.Tensor]:
    return [state.model.weight, state.optimizer.state[state.model.weight]["momentum_buffer"]]


def fill(state: Any, number: int) -> None:
    """Put a number into everything that the State keeps."""
    with torch.no_grad():
        for tensor in tensors(state):
            tensor.fill_(number)


def whole(state: Any) -> bool:
    """Everything in the State is of one and the same commit."""
    same = all(bool((tensor == state.batch).all()) for tensor in tensors(state))
    return same and state.history == list(range(1, state.batch + 1))[-5:]
