"""The state of every optimizer and scheduler of torch is of plain values, and comes back from them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler, swa_utils

from hvd_elastic_ext.checkpoint.values.read import read
from hvd_elastic_ext.checkpoint.values.write import write


def classes(module: Any, base: type, *without: type) -> dict[str, Any]:
    found = {name: kind for name, kind in vars(module).items() if inspect.isclass(kind) and issubclass(kind, base)}
    return {name: kind for name, kind in sorted(found.items()) if name[0] != "_" and kind not in (base, *without)}


OPTIMIZERS = classes(optim, optim.Optimizer)
SCHEDULERS = classes(lr_scheduler, lr_scheduler.LRScheduler) | {"SWALR": swa_utils.SWALR}
ARGUMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "LambdaLR": lambda optimizer: {"lr_lambda": Warmup()},
    "MultiplicativeLR": lambda optimizer: {"lr_lambda": lambda epoch: 0.9},
    "StepLR": lambda optimizer: {"step_size": 2},
    "MultiStepLR": lambda optimizer: {"milestones": [2, 3]},
    "ExponentialLR": lambda optimizer: {"gamma": 0.9},
    "CosineAnnealingLR": lambda optimizer: {"T_max": 9},
    "CosineAnnealingWarmRestarts": lambda optimizer: {"T_0": 3},
    "CyclicLR": lambda optimizer: {"base_lr": 0.01, "max_lr": 0.1, "scale_fn": Warmup()},
    "OneCycleLR": lambda optimizer: {"max_lr": 0.1, "total_steps": 20},
    "SequentialLR": lambda optimizer: {"schedulers": both(optimizer), "milestones": [2]},
    "ChainedScheduler": lambda optimizer: {"schedulers": both(optimizer)},
    "SWALR": lambda optimizer: {"swa_lr": 0.05},
}


class Warmup:
    """A rate with state of its own, which such a scheduler saves."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: float) -> float:
        self.calls += 1
        return 0.5


def both(optimizer: Any) -> list[Any]:
    return [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]


def there_and_back(value: Any) -> Any:
    tensors: list[Tensor] = []
    text = write(value, tensors)
    return read(text, lambda index, kind: tensors[index].clone())


def demand_same(one: Any, other: Any) -> None:
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    assert write(one, ours) == write(other, theirs)
    assert all(map(torch.equal, ours, theirs))


def trained(name: str, steps: int) -> Any:
    net: nn.Module = nn.Embedding(3, 2, sparse=True) if name == "SparseAdam" else nn.Linear(3, 2, bias=False)
    optimizer = OPTIMIZERS[name](net.parameters(), lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        given = torch.tensor([0, 2]) if name == "SparseAdam" else torch.ones(1, 3)
        loss: Tensor = net(given).sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_an_optimizer_comes_back(name: str) -> None:
    state, other = trained(name, 2).state_dict(), trained(name, 0)
    other.load_state_dict(there_and_back(state))
    demand_same(other.state_dict(), state)


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore")
def test_the_state_of_a_scheduler_comes_back(name: str) -> None:
    def built() -> Any:
        optimizer = optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
        return SCHEDULERS[name](optimizer=optimizer, **ARGUMENTS.get(name, lambda optimizer: {})(optimizer))

    one, other = built(), built()
    for _ in range(3):
        one.optimizer.step()
        one.step(*((1.0,) if name == "ReduceLROnPlateau" else ()))
    other.load_state_dict(there_and_back(one.state_dict()))
    demand_same(other.state_dict(), one.state_dict())
