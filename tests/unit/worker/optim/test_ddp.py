"""``elastic.ddp``: one DDP for each world around the same module, with real process groups of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.optim import ddp as ddps
from hvd_elastic_ext.worker.optim.ddp import ElasticDDP, ddp


class Ranks:
    """The present world for comparisons: ``other`` is what the other rank gives."""

    def __init__(self) -> None:
        self.other: Callable[[int], int] = lambda mine: mine

    def max(self, number: int, *, name: str) -> int:
        return max(number, self.other(number))


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Ranks]]:
    """Leave the world of torch, if any, and enter another one."""

    def entered() -> Ranks:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        ranks = Ranks()
        current_world.use(ranks)  # type: ignore[arg-type]
        return ranks

    yield entered
    current_world.use(None)
    if dist.is_initialized():
        dist.destroy_process_group()


def trained(model: ElasticDDP) -> list[float]:
    model.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    assert isinstance(model.module, nn.Linear)
    assert model.module.weight.grad is not None
    return [float(number) for number in model.module.weight.grad.flatten()]


def test_each_world_has_a_ddp_of_its_own_around_the_same_module(enter: Callable[[], Ranks]) -> None:
    model = ddp(nn.Linear(2, 1))
    weight = model.module.weight
    seen = []
    for _ in range(3):
        enter()
        assert trained(model) == [1.0, 1.0]
        assert trained(model) == [1.0, 1.0]
        seen.append(model._of_this_world())
        assert model._of_this_world() is seen[-1]
    assert len(set(map(id, seen))) == 3
    assert all(type(each) is DistributedDataParallel and each.module.weight is weight for each in seen)


def test_its_values_have_the_names_that_a_ddp_gives_them_and_no_others(enter: Callable[[], Ranks]) -> None:
    enter()
    model = ddp(nn.Linear(2, 1))
    trained(model)
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    assert [name for name, _ in model.named_parameters()] == ["module.weight", "module.bias"]


def test_values_are_sent_only_if_they_differ_between_ranks(
    enter: Callable[[], Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class Noted(DistributedDataParallel):
        def __init__(self, module: nn.Module, **options: Any) -> None:
            made.append(options)
            super().__init__(module, **options)

    monkeypatch.setattr(ddps, "DistributedDataParallel", Noted)
    model = ddp(nn.Linear(2, 1), find_unused_parameters=True)
    enter()
    trained(model)
    ranks = enter()
    ranks.other = lambda mine: mine + 1
    trained(model)
    assert made == [
        {"find_unused_parameters": True, "init_sync": False},
        {"find_unused_parameters": True, "init_sync": True},
    ]


def test_one_bit_of_one_value_makes_a_difference() -> None:
    values = [torch.zeros(3), torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bool)]
    values += [torch.zeros(2, dtype=torch.complex64), torch.zeros(2, dtype=torch.float64)]
    for value in values:
        other = value.clone()
        other.view(torch.uint8 if not value.is_complex() else value.dtype)[-1] = 1
        assert ddps._bits(value) != ddps._bits(other), value.dtype


def test_a_communication_hook_is_given_to_the_ddp_of_each_world(enter: Callable[[], Ranks]) -> None:
    calls: list[object] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations
        calls.append(state)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model = ddp(nn.Linear(2, 1))
    enter()
    model.register_comm_hook("first", hook)
    trained(model)
    enter()
    trained(model)
    assert calls == ["first", "first"]


def test_gradients_add_up_without_being_averaged_within_no_sync(enter: Callable[[], Ranks]) -> None:
    enter()
    model = ddp(nn.Linear(2, 1))
    trained(model)
    model.zero_grad()
    with model.no_sync():
        model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2)).sum().backward()
    assert model.module.weight.grad.flatten().tolist() == [2.0, 2.0]


def test_one_rank_may_evaluate_alone_before_all_train(enter: Callable[[], Ranks]) -> None:
    ranks = enter()
    model = ddp(nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1)))
    ranks.other = lambda mine: pytest.fail("the other rank is not there")
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(torch.ones(1, 64)), model.module[1](torch.ones(1, 64)))
    ranks.other = lambda mine: mine
    model.train()
    model(torch.ones(1, 64)).sum().backward()
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(torch.ones(1, 64)), model.module[1](torch.ones(1, 64)))


def test_a_model_that_is_tuned_in_evaluation_mode_is_averaged_too(enter: Callable[[], Ranks]) -> None:
    enter()
    model = ddp(nn.Linear(2, 1)).eval()
    model(torch.ones(1, 2)).sum().backward()
    assert model._made_here() is not None


def test_a_part_of_the_module_that_is_frozen_stays_so(enter: Callable[[], Ranks]) -> None:
    enter()
    model = ddp(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)))
    model.module[0].eval()
    model(torch.ones(4, 2)).sum().backward()
    assert not model.module[0].training
    assert model.module[1].training


def test_a_copy_of_it_is_in_no_world(enter: Callable[[], Ranks]) -> None:
    enter()
    model = ddp(nn.Linear(2, 1))
    trained(model)
    copied = copy.deepcopy(model)
    assert copied._made_here() is None
    assert torch.equal(copied.module.weight, model.module.weight)


@pytest.mark.parametrize("option", ["process_group", "device_mesh"])
def test_a_group_of_ones_own_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="leave process_group and device_mesh out"):
        ddp(nn.Linear(2, 1), **{option: None})


def test_without_a_world_of_torch_it_says_what_to_start_it_with() -> None:
    with pytest.raises(UsageError, match="start with --engine torch or with torchrun"):
        ddp(nn.Linear(2, 1))(torch.ones(1, 2))
