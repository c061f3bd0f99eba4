"""A checkpoint from before is put into a State: exactly, by name, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import pytest
import torch
from torch import nn

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core.errors import StateError, UsageError
from tests.contract.worker.training import step, trained
from tests.contract.worker.user_states import Own

pytestmark = pytest.mark.usefixtures("alone")


class Mixed(elastic.ElasticMixin, Own):
    """A user's own State."""


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.1)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.fixture
def old() -> dict[str, Any]:
    """What a script saved that had trained."""
    net, optimizer = trained(adam)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    step(net, optimizer)
    schedule.step()
    saved = {"model": net, "optimizer": optimizer, "schedule": schedule}
    return {**{name: value.state_dict() for name, value in saved.items()}, "epoch": 7, "seen": [1, 2]}


def fresh(**more: Any) -> elastic.TorchState:
    net, optimizer = trained(adam)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return elastic.TorchState(model=net, optimizer=optimizer, schedule=schedule, epoch=0, seen=[], **more)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("synced", [False, True])
def test_everything_comes_back_from_a_file_and_is_what_a_roll_back_returns_to(
    old: dict[str, Any], tmp_path: Path, synced: bool
) -> None:
    torch.save(old, tmp_path / "old.pt")
    state = fresh()
    assert elastic.load_checkpoint(state, tmp_path / "old.pt") is True
    if synced:
        state.sync()
    for _ in range(2):
        assert same(state.model.state_dict(), old["model"])
        assert same(state.optimizer.state_dict(), old["optimizer"])
        assert same(state.schedule.state_dict(), old["schedule"])
        assert (state.epoch, state.seen) == (7, [1, 2])
        step(state.model, state.optimizer)
        state.epoch = 9
        state.restore()


def test_names_say_what_is_taken_and_what_it_is_called_there(old: dict[str, Any]) -> None:
    given = {"model_state_dict": old["model"], "epoch": 7, "args": {"lr": 1}}
    state = fresh()
    before = state.optimizer.state_dict()
    assert elastic.load_checkpoint(state, given, {"model": "model_state_dict", "epoch": "epoch"})
    assert same(state.model.state_dict(), old["model"])
    assert state.epoch == 7
    assert same(state.optimizer.state_dict(), before)
    assert state.seen == []


def test_a_list_of_names_takes_those_and_a_bare_state_dict_is_the_whole_file(old: dict[str, Any]) -> None:
    state = fresh()
    elastic.load_checkpoint(state, {**old, "loss": 0.5}, ["epoch"])
    assert state.epoch == 7
    elastic.load_checkpoint(state, old["model"], {"model": None})
    assert same(state.model.state_dict(), old["model"])


def prefixed(state_dict: Mapping[str, Any], *, but: str = "") -> dict[str, Any]:
    return {key if key == but else f"module.{key}": value for key, value in state_dict.items()}


def test_the_prefix_of_distributed_data_parallel_goes_if_all_have_it(old: dict[str, Any]) -> None:
    state = fresh()
    elastic.load_checkpoint(state, prefixed(old["model"]), {"model": None})
    assert same(state.model.state_dict(), old["model"])
    with pytest.raises(StateError, match=r"model: the model has no 'module\.bias'"):
        elastic.load_checkpoint(state, prefixed(old["model"], but="weight"), {"model": None})


def test_a_model_that_is_wrapped_itself_keeps_the_prefix(old: dict[str, Any]) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(3, 2)

    state = elastic.TorchState(model=Wrapped())
    elastic.load_checkpoint(state, prefixed(old["model"]), {"model": None})
    assert same(state.model.module.state_dict(), old["model"])


WRONG: dict[str, tuple[Any, Any, str]] = {
    "foreign names": (
        lambda old: {**old, "args": 1, "loss": 2}, None, "the State has no 'args', 'loss'; say with names=",
    ),
    "absent ones": (
        lambda old: {"model": old["model"]}, None,
        "it has no 'epoch', 'optimizer', 'schedule' and 1 more; say with names=",
    ),
    "a wish for what is not there": (
        lambda old: old, {"model": "net"}, "it has no 'net'; it has 'model', 'optimizer', 'schedule' and 2 more",
    ),
    "a name that the State has not": (lambda old: old, ["modle"], "the State has no 'modle' and it has no 'modle'"),
    "another model": (
        lambda old: {"model": {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}}, ["model"],
        "model: 'weight' is 2x4 float32, and 2x3 float32 in the model",
    ),
    "another precision": (
        lambda old: {"model": {key: value.half() for key, value in old["model"].items()}}, ["model"],
        "model: 'weight' is 2x3 float16, and 2x3 float32 in the model",
    ),
    "a layer that is missing": (
        lambda old: {"model": {"weight": old["model"]["weight"]}}, ["model"], "model: there is no 'bias'",
    ),
    "a model's own in place of its state": (lambda old: {"model": 5}, ["model"], "model: it is not a state_dict"),
    "an optimizer of more": (
        lambda old: {"optimizer": {"state": {}, "param_groups": [{"params": [0, 1, 2]}]}}, ["optimizer"],
        r"optimizer: its groups have \[3\] parameters, and those of the State's optimizer \[2\]",
    ),
    "an optimizer of another class": (
        lambda old: {"optimizer": trained(sgd)[1].state_dict()}, ["optimizer"],
        r"optimizer: it is of the class SGD, and the State's optimizer of Adam; make the same optimizer, or leave",
    ),
    "one of another class that keeps state": (
        lambda old: {"optimizer": trained(momentum)[1].state_dict()}, ["optimizer"],
        r"optimizer: it is of the class SGD, and the State's optimizer of Adam; make the same optimizer, or leave",
    ),
    "no optimizer": (lambda old: {"optimizer": {"a": 1}}, ["optimizer"], "optimizer: it is not a state_dict of an opt"),
    "an odd optimizer": (
        lambda old: {"optimizer": {"state": {}, "param_groups": 3}}, ["optimizer"],
        "optimizer: it is not a state_dict of an opt",
    ),
    "a list": (lambda old: [1], None, "it holds a value of type list, not a dict with names"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_of_another_state_is_one_line_and_changes_nothing(
    case: str, old: dict[str, Any], tmp_path: Path
) -> None:
    make, names, message = WRONG[case]
    torch.save(make(old), tmp_path / "a.pt")
    state = fresh()
    before = state.fingerprint()
    with pytest.raises(StateError, match=message) as caught:
        elastic.load_checkpoint(state, tmp_path / "a.pt", names)
    assert str(caught.value).startswith(f"{tmp_path / 'a.pt'}: ")
    assert "\n" not in str(caught.value)
    assert state.fingerprint() == before


def test_an_optimizer_with_the_same_settings_under_another_name_takes_the_file(old: dict[str, Any]) -> None:
    class Mine(torch.optim.Adam):
        """The script has renamed it since, and has added a setting."""

    for kind in (torch.optim.AdamW, Mine):
        net, optimizer = trained(partial(kind, lr=0.1))
        optimizer.param_groups[0]["mine"] = 1
        state = elastic.TorchState(model=net, optimizer=optimizer)
        elastic.load_checkpoint(state, old, ["optimizer"])
        assert same(state.optimizer.state_dict()["state"], old["optimizer"]["state"])
        step(net, optimizer)


def test_what_a_users_own_loader_raises_is_one_line(old: dict[str, Any]) -> None:
    class Picky:
        def state_dict(self) -> Any:
            return {"a": 1}

        def load_state_dict(self, state: Any) -> None:
            raise KeyError(f"not\nthis {state}")

    state = elastic.TorchState(picky=Picky())
    with pytest.raises(StateError, match=r"the given dict: picky: .*not.*this") as caught:
        elastic.load_checkpoint(state, {"picky": {"b": 2}})
    assert "\n" not in str(caught.value)


def test_a_file_that_no_rank_has_ends_the_first_sync(tmp_path: Path) -> None:
    state = fresh()
    assert elastic.load_checkpoint(state, tmp_path / "absent.pt") is False
    with pytest.raises(StateError, match=r"absent\.pt: no rank has it"):
        state.sync()


def test_once_training_has_begun_nothing_is_loaded(old: dict[str, Any]) -> None:
    state = fresh()
    state.sync()
    with pytest.raises(UsageError, match="before train"):
        elastic.load_checkpoint(state, old)


def test_a_state_of_horovods_own_is_refused(old: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="use elastic"):
        elastic.load_checkpoint(hvd.elastic.TorchState(model=nn.Linear(3, 2)), old)


def test_what_an_earlier_process_has_committed_is_newer_and_that_is_said(
    old: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    state = fresh()
    state._keeper._inherited = True
    before = state.epoch
    with caplog.at_level(logging.WARNING):
        assert elastic.load_checkpoint(state, old) is False
    assert "the given dict is not loaded: training goes on after step 0" in caplog.text
    assert state.epoch == before


def test_a_users_own_state_takes_what_it_has_by_name(old: dict[str, Any]) -> None:
    net, optimizer = trained(adam)
    state = Mixed(net, optimizer, batch=0)
    elastic.load_checkpoint(state, {"batch": 40, "history": [1]})
    state.sync()
    state.batch = 41
    state.restore()
    assert (state.batch, state.history) == (40, [1])
    with pytest.raises(StateError, match="the State has no 'epoch'"):
        elastic.load_checkpoint(Mixed(net, optimizer), {"epoch": 1})
