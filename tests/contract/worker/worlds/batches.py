"""Global batches and shards that the ranks of a world share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import horovod.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.comms.horovod import HorovodComms
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.stream import ElasticStream
from tests.contract.worker.worlds.registry import check

COUNT, TOTAL, LARGEST = 17, 7, 2  # neither divides by two ranks, nor does what one rank takes; the last batch has 3


def data() -> TensorDataset:
    inputs = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def trainee() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    return net, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)


def flat(net: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).tolist()


def together() -> Iterator[list[float]]:
    """Weights after each step of this world."""
    net, optimizer = trainee()
    averaging = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    batches = GlobalBatches(ElasticSampler(range(COUNT), seed=1), TOTAL, LARGEST)
    averaging.set_backward_passes_per_step(batches.passes)
    for step in batches.steps(DataLoader(data(), batch_sampler=batches)):
        for (inputs, labels), weight in step:
            (F.cross_entropy(net(inputs), labels) * weight).backward()
        averaging.step()
        averaging.zero_grad()
        yield flat(net)


def alone() -> Iterator[list[float]]:
    """Weights after each step of one process with the large batches."""
    net, optimizer = trainee()
    order = ElasticSampler(range(COUNT), seed=1).order()
    for start in range(0, COUNT, TOTAL):
        inputs, labels = data()[order[start : start + TOTAL]]
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        yield flat(net)


@check
def global_batches_train_as_one_process(State: Any) -> dict[str, Any]:
    return {"together": list(together()), "alone": list(alone())}


@check
def ranks_share_the_counting_of_shards(State: Any) -> dict[str, Any]:
    """Which shards this rank read to count, and what all of them know then."""
    read: list[str] = []

    def open_shard(shard: str, start: int) -> Any:
        read.append(shard)
        return range(start, int(shard))

    current_world.use(HorovodComms())
    stream = ElasticStream(["3", "4", "5"], open_shard)
    stream.measure()
    return {"read": read, "lengths": stream.state_dict()["lengths"]}
