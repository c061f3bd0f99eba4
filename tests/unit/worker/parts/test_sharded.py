"""Sharded models are refused when the State is made: FSDP hangs in a commit that not all ranks make at once."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest
import torch
import torch.distributed
from torch import nn

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core.errors import StateError


@pytest.fixture
def world_of_one() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def fully_shard() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(2, 2)
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    return model


def wrapped_within() -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return nn.Sequential(nn.Linear(2, 2), FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu")))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "who"), [(fully_shard, "fully_shard"), (wrapped_within, "FSDP")])
@pytest.mark.usefixtures("world_of_one")
def test_a_model_that_torch_shards_is_refused(make, who: str) -> None:
    with pytest.raises(StateError, match=rf"sharded over the ranks by {who}.*DistributedDataParallel"):
        elastic.TorchState(model=make(), step=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("world_of_one")
def test_an_optimizer_of_a_sharded_model_is_refused() -> None:
    with pytest.raises(StateError, match="SGD: it is sharded"):
        elastic.TorchState(optimizer=torch.optim.SGD(fully_shard().parameters(), lr=0.1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("world_of_one")
def test_an_optimizer_that_shards_its_own_state_is_refused() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(nn.Linear(2, 2).parameters(), optimizer_class=torch.optim.Adam, lr=0.1)
    with pytest.raises(StateError, match="ZeroRedundancyOptimizer: it is sharded over the ranks by torch's ZeRO, and"):
        elastic.TorchState(optimizer=optimizer)


def test_an_engine_of_deepspeed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    engine = type("DeepSpeedEngine", (nn.Module,), {"__module__": "deepspeed.runtime.engine"})
    with pytest.raises(StateError, match="DeepSpeedEngine: it is sharded over the ranks by DeepSpeed"):
        elastic.TorchState(model=engine())


@pytest.mark.usefixtures("world_of_one")
def test_a_model_of_ddp_is_kept() -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    assert elastic.TorchState(model=model, step=0).step == 0
