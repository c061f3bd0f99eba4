"""A roll-back copies into the tensors that are there, and asks loaders only where they may have something to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

from hvd_elastic_ext.worker.parts.torch_parts import ModelPart, OptimizerPart, ParameterNames
from tests.contract.parts.cases import committed, put_back, step


class Own(optim.Adam):
    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)


class OwnState(optim.Adam):
    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)


def first(optimizer: Any) -> Any:
    return next(iter(optimizer.state.values()))


CHANGES: dict[str, Callable[[Any], object]] = {
    "a hook before loading": lambda own: own.register_load_state_dict_pre_hook(lambda own, state: None),
    "a hook after loading": lambda own: own.register_load_state_dict_post_hook(lambda own: None),
    "a loader of the object": lambda own: setattr(own, "load_state_dict", own.load_state_dict),
    "an option that says where state lies": lambda own: own.param_groups[0].update(capturable=True),
    "another type": lambda own: first(own).update(exp_avg=first(own)["exp_avg"].double()),
    "more": lambda own: first(own).update(more=1),
    "another order": lambda own: first(own).update(step=first(own).pop("step")),
    "a number": lambda own: first(own).update(step=1.0),
    "other parameters first": lambda own: own.state.update(
        {next(iter(own.state)): own.state.pop(next(iter(own.state)))}
    ),
    "no state": lambda own: own.state.clear(),
}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many parameters optimizers have loaded state, each time."""
    found: list[int] = []
    original = optim.Optimizer.load_state_dict

    def load_state_dict(self: Any, state_dict: Any) -> None:
        found.append(len(state_dict["state"]))
        original(self, state_dict)

    load_state_dict.__module__ = original.__module__
    monkeypatch.setattr(optim.Optimizer, "load_state_dict", load_state_dict)
    return found


def trained(kind: Any = optim.Adam) -> tuple[nn.Module, Any, OptimizerPart]:
    net = nn.Linear(3, 2)
    optimizer = kind(net.parameters(), lr=0.1)
    step(net, optimizer)
    return net, optimizer, OptimizerPart(optimizer, ParameterNames())


def test_state_that_fits_is_copied_in_place_and_only_groups_are_loaded(loaded: list[int]) -> None:
    net, optimizer, part = trained()
    commit, own = committed(part), first(optimizer)["exp_avg"]
    step(net, optimizer)
    optimizer.param_groups[0]["lr"] = 9.0
    put_back(part, commit)
    assert loaded == [0]
    assert first(optimizer)["exp_avg"] is own
    assert committed(part) == commit


@pytest.mark.parametrize("change", CHANGES)
def test_state_is_loaded_where_loading_may_do_more(loaded: list[int], change: str) -> None:
    net, optimizer, part = trained()
    commit = committed(part)
    step(net, optimizer)
    CHANGES[change](optimizer)
    put_back(part, commit)
    assert loaded == [2]
    assert committed(part) == commit


@pytest.mark.parametrize("kind", [Own, OwnState])
def test_a_loader_of_the_users_own_gets_all_state(loaded: list[int], kind: Any) -> None:
    net, optimizer, part = trained(kind)
    commit = committed(part)
    step(net, optimizer)
    put_back(part, commit)
    assert loaded == [2]
    assert committed(part) == commit


def test_a_model_is_copied_in_place_and_hooks_after_loading_run() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    part, ran = ModelPart(net), []
    commit = committed(part)
    for hooks in range(2):
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.detach().add_(1)
        put_back(part, commit)
        assert committed(part) == commit
        assert len(ran) == hooks
        net[0].register_load_state_dict_post_hook(lambda module, keys: ran.append(module))


def test_a_model_that_says_copies_of_its_state_rolls_back_its_own_tensors() -> None:
    class Copies(nn.Linear):
        def state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return {key: value.detach().clone() for key, value in super().state_dict(*args, **kwargs).items()}

    net = Copies(3, 2)
    part = ModelPart(net)
    commit = committed(part)
    with torch.no_grad():
        net.weight.add_(1)
    put_back(part, commit)
    assert committed(part) == commit
