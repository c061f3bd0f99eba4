"""Names for checks, and what several of them need."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import horovod.torch as hvd
import torch
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.elastic.worker import HostUpdateResult
from horovod.runner.http.http_server import RendezvousServer
from torch import nn

from hvd_elastic_ext.worker.comms.horovod import HorovodComms
from hvd_elastic_ext.worker.sync.exchange import fingerprint

Check = Callable[[Any], dict[str, Any]]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function


def model(width: int = 3) -> nn.Module:
    """A model whose weights differ from rank to rank, as in a newcomer."""
    torch.manual_seed(100 + hvd.rank())
    return nn.Sequential(nn.Linear(width, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def train_alone(net: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int) -> None:
    """Steps without reductions, as if the other ranks were not there yet."""
    for step in range(steps):
        optimizer.zero_grad()
        net(torch.full((2, 3), 1.0 + step) * torch.tensor([[1.0], [2.0]])).sum().backward()
        optimizer.step()


def weights(net: nn.Module) -> str:
    return fingerprint(net.state_dict())


def interrupt_of(state: Any) -> bool | None:
    """Whether the interrupt asks to skip the sync; None if nothing is raised."""
    try:
        state.check_host_updates()
    except HostsUpdatedInterrupt as interrupt:
        return interrupt.skip_sync
    return None


def notify(state: Any, *, on: int, stamp: int = 1) -> None:
    """A notice that hosts were added reaches one rank."""
    if hvd.rank() == on:
        state.on_hosts_updated(stamp, HostUpdateResult.added)


def prepare_another_world() -> None:
    """Let the next ``hvd.init()`` meet at a place of its own.

    Without an elastic driver all worlds of a job meet at one place, where the
    addresses of the last world still lie: whoever comes first finds a dead one.
    """
    port = torch.zeros(1, dtype=torch.int64)
    if hvd.rank() == 0:
        server = RendezvousServer(verbose=0)
        port[0] = server.start()
        server.init(get_host_assignments(parse_hosts(f"localhost:{hvd.size()}"), hvd.size()))
        _SERVERS.append(server)
    hvd.broadcast_(port, root_rank=0, name="the next rendezvous")
    os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = "127.0.0.1"
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port.item())


_SERVERS: list[Any] = []


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Bytes that our State sends by each blocking collective while this is entered."""
    sent = {"broadcast": 0, "sum": 0, "max": 0}
    own = dict(vars(HorovodComms))  # what it does not have itself is inherited

    def counting(name: str, original: Any) -> Any:
        def call(self: Any, data: Any, **options: Any) -> Any:
            sent[name] += data.numel() * data.element_size() if isinstance(data, torch.Tensor) else 8
            return original(self, data, **options)

        return call

    for name in sent:
        setattr(HorovodComms, name, counting(name, getattr(HorovodComms, name)))
    try:
        yield sent
    finally:
        for name in sent:
            if name in own:
                setattr(HorovodComms, name, own[name])
            else:
                delattr(HorovodComms, name)
