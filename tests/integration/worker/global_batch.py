"""Run by every rank of a real Horovod world: ``global_batch.py DIRECTORY``; writes ``DIRECTORY/RANK.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
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

COUNT, TOTAL, LARGEST = 17, 7, 2  # neither divides by two ranks, nor does what one rank takes; the last batch has 3


def data() -> TensorDataset:
    inputs = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def weights(net: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).tolist()


def together() -> list[list[float]]:
    """Weights after each step of this world."""
    net = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9), named_parameters=net.named_parameters()
    )
    batches = GlobalBatches(ElasticSampler(range(COUNT), seed=1), TOTAL, LARGEST)
    optimizer.set_backward_passes_per_step(batches.passes)
    seen = []
    for step in batches.steps(DataLoader(data(), batch_sampler=batches)):
        for (inputs, labels), weight in step:
            (F.cross_entropy(net(inputs), labels) * weight).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(weights(net))
    return seen


def alone() -> list[list[float]]:
    """Weights after each step of one process with the large batches."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    order = ElasticSampler(range(COUNT), seed=1).order()
    seen = []
    for start in range(0, COUNT, TOTAL):
        inputs, labels = data()[order[start : start + TOTAL]]
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
        seen.append(weights(net))
    return seen


def undivided() -> list[float]:
    """What Horovod makes of two passes with a gradient of 1 each."""
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0), backward_passes_per_step=2)
    for _ in range(2):
        parameter.sum().backward()
    optimizer.step()
    return parameter.tolist()


def counted() -> dict[str, Any]:
    """Which shards this rank read to count, and what all of them know then."""
    read: list[str] = []

    def open_shard(shard: str, start: int) -> Any:
        read.append(shard)
        return range(start, int(shard))

    current_world.use(HorovodComms())
    stream = ElasticStream(["3", "4", "5"], open_shard)
    stream.measure()
    return {"read": read, "lengths": stream.state_dict()["lengths"]}


def main() -> None:
    hvd.init()
    saw = {"together": together(), "alone": alone(), "undivided": undivided(), "counted": counted()}
    (Path(sys.argv[1]) / f"{hvd.rank()}.json").write_text(json.dumps(saw))


if __name__ == "__main__":
    main()
