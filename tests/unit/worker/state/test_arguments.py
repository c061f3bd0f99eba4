"""Mistakes of training scripts are refused in one line that says what to do, before training begins."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from horovod.common.elastic import ObjectState
from torch import nn
from torch.utils.data import DataLoader

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.worker.state import arguments
from hvd_elastic_ext.worker.state.loop import elastic as loop


def net() -> nn.Module:
    return nn.Linear(2, 2)


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(net().parameters(), lr=0.1)


class Net(nn.Module):
    """A model that is made without arguments."""


class Old(ObjectState):
    """A State of a script for Horovod."""


def one_line(error: Exception) -> str:
    said = str(error)
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": sgd(), "optimizer": net()}, "swapped; write TorchState(model, optimizer, …)"),
        ({"model": "resnet"}, "state.model is a value of type str; give a torch.nn.Module"),
        ({"model": sgd()}, "state.model is a value of type SGD; give a torch.nn.Module"),
        ({"model": nn.Linear}, "state.model is the class Linear; give an object of it"),
        ({"optimizer": torch.optim.SGD}, "state.optimizer is the class SGD; give an object of it"),
        ({"optimizer": 0.1}, "state.optimizer is a value of type float; give a torch.optim.Optimizer"),
        ({"optimizer": net()}, "state.optimizer is a value of type Linear; give a torch.optim.Optimizer"),
        ({"discriminator": nn.Linear}, "state.discriminator is the class Linear; give an object of it: Linear(…)"),
        ({"model": Net}, "state.model is the class Net; give an object of it: Net()"),
        ({"scheduler": torch.optim.lr_scheduler.StepLR}, "state.scheduler is the class StepLR; give an object of it"),
        ({"commit": 3}, "state.commit is a part of every State; give this value another name"),
        ({"sync": True}, "state.sync is a part of every State"),
        ({"check_host_updates": 1}, "state.check_host_updates is a part of every State"),
        ({"_keeper": 1}, "state._keeper is a part of every State"),
        ({"loader": DataLoader([1, 2])}, "state.loader is a DataLoader, which has no state to keep; give its sampler"),
    ],
)
def test_values_that_a_state_cannot_have_are_refused_when_it_is_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(elastic.StateError) as refused:
        elastic.TorchState(**given)
    assert said in one_line(refused.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rgn": False}, "TorchState(…): rgn is not an option; did you mean rng?"),
        ({"rn": True}, "did you mean rng?"),
        ({"Rng": True}, "did you mean rng?"),
        ({"comm": "torch"}, "did you mean comms?"),
        ({"commms": "torch"}, "did you mean comms?"),
        ({"chekpoint": elastic.Checkpoint(save=print, load=print)}, "did you mean checkpoint?"),
        ({"commit_every": 10}, "commit_every is not an option of a State; give --commit-every to `hvd-elastic run`"),
        ({"comit_every": 10}, "comit_every is not an option of a State; give --commit-every"),
        ({"checkpoint_dir": "/ckpt"}, "give --checkpoint-dir to `hvd-elastic run`"),
    ],
)
def test_an_option_with_a_slip_in_its_name_is_refused_with_the_right_one(given: dict[str, Any], said: str) -> None:
    with pytest.raises(elastic.StateError) as refused:
        elastic.TorchState(**given)
    assert said in one_line(refused.value)


@pytest.mark.parametrize(
    "given",
    [{"rank": 3}, {"run": True}, {"rgn": 3}, {"checkpoints": []}, {"commits": 0}, {"comms2": None}, {"args": "x"}],
)
def test_a_value_that_only_resembles_an_option_is_kept(given: dict[str, Any]) -> None:
    state = elastic.TorchState(**given)
    assert {name: getattr(state, name) for name in given} == given


def test_a_script_for_horovods_state_may_use_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_ELASTIC_ADOPT", "1")
    assert elastic.TorchState(commit_every=10).commit_every == 10


def test_swapped_arguments_are_refused_by_position_too() -> None:
    with pytest.raises(elastic.StateError, match="swapped"):
        elastic.TorchState(sgd(), net())


def test_a_value_that_is_given_without_a_name_is_refused_with_the_way_to_name_it() -> None:
    with pytest.raises(elastic.StateError) as refused:
        elastic.TorchState(net(), sgd(), elastic.ElasticSampler([1, 2]), 0)
    assert one_line(refused.value) == (
        "TorchState(…): a value of type ElasticSampler is given without a name; name what the State is to keep: "
        "TorchState(model=model, optimizer=optimizer, name=value, …)"
    )


def test_what_a_state_may_have_passes() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "batch": 0, "kind": "resnet", "best": None}
    state = elastic.TorchState(**given)
    assert (state.model, state.optimizer, state.scheduler) == (model, optimizer, scheduler)
    assert (state.batch, state.kind, state.best) == (0, "resnet", None)
    empty = elastic.TorchState(model=None, optimizer=None)
    assert (empty.model, empty.optimizer) == (None, None)
    weights = {"weight": torch.zeros(1)}
    assert elastic.TorchState(model=weights).model is weights


def test_an_unknown_attribute_is_named_with_the_nearest_one() -> None:
    with pytest.raises(AttributeError) as unknown:
        raise arguments.unknown(object(), "epohc", ("epoch", "batch"))
    assert one_line(unknown.value) == "object has no attribute 'epohc' (did you mean 'epoch'?); it has batch, epoch"


def test_an_attribute_that_is_not_kept_is_told_with_the_nearest_one_that_is() -> None:
    said = arguments.not_kept("epohc", ("epoch", "batch"))
    assert said.startswith("state.epohc is not kept: it was not given when the State was made (did you mean 'epoch'?)")


def test_a_mixin_behind_its_state_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(elastic.StateError, match=r"write class Wrong\(ElasticMixin, Old\)"):

        class Wrong(Old, elastic.ElasticMixin):
            pass


def test_a_mixin_over_our_own_state_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(elastic.StateError, match=r"class Twice: elastic\.TorchState needs no ElasticMixin"):

        class Twice(elastic.ElasticMixin, elastic.TorchState):
            pass


def test_a_mixin_without_a_state_is_refused_at_its_first_use() -> None:
    class Alone(elastic.ElasticMixin):
        pass

    with pytest.raises(elastic.StateError, match="class Alone has an ElasticMixin, but no State"):
        Alone().save()


def test_the_right_order_of_bases_passes_and_may_be_inherited() -> None:
    class Right(elastic.ElasticMixin, Old):
        pass

    class Further(Right):
        pass

    assert issubclass(Further, Old)


class Notifications:
    def init(self) -> None: ...

    def register_listener(self, listener: object) -> None: ...

    def remove_listener(self, listener: object) -> None: ...


class FakeState:
    def __init__(self) -> None:
        self.synced = 0

    def sync(self) -> None:
        self.synced += 1

    def restore(self) -> None: ...

    def on_reset(self) -> None: ...


def decorated(train: Callable[..., Any]) -> Callable[..., Any]:
    return loop(train, reset=lambda: None, notifications=Notifications(), clock=SystemClock())


def test_a_method_can_be_decorated_and_gets_its_own_object_and_the_state() -> None:
    class Trainer:
        @decorated
        def fit(self, state: FakeState, epochs: int) -> tuple[object, object, int]:
            return self, state, epochs

    trainer, state = Trainer(), FakeState()
    assert trainer.fit(state, epochs=3) == (trainer, state, 3)
    assert state.synced == 1


def test_a_state_may_be_given_by_its_name() -> None:
    @decorated
    def train(*, state: FakeState) -> FakeState:
        return state

    state = FakeState()
    assert train(state=state) is state
    assert state.synced == 1


def test_a_class_in_the_place_of_the_state_is_told_as_such() -> None:
    @decorated
    def train(state: object) -> None: ...

    with pytest.raises(elastic.UsageError) as refused:
        train(FakeState)
    assert one_line(refused.value) == "train was called with the class FakeState; give an object of it: FakeState()"


def test_run_works_with_parentheses_too() -> None:
    @elastic.run()
    def train(state: FakeState, epochs: int = 3) -> float:
        return 0.5

    assert train.__name__ == "train"
    assert list(inspect.signature(train).parameters) == ["state", "epochs"]


def test_a_decorated_function_keeps_its_name_and_signature() -> None:
    def train(state: FakeState, epochs: int = 3) -> float:
        """Train it."""
        return 0.5

    wrapped = elastic.run(train)
    assert (wrapped.__name__, wrapped.__doc__) == ("train", "Train it.")
    assert inspect.signature(wrapped) == inspect.signature(train)


@pytest.mark.parametrize(
    ("given", "said"),
    [(FakeState, "the class FakeState"), (7, "a value of type int"), (None, "a value of type NoneType")],
)
def test_what_is_not_a_function_is_refused_by_run_when_it_decorates(given: Any, said: str) -> None:
    with pytest.raises(elastic.UsageError, match=f"@elastic.run was given {said}; decorate the training function"):
        elastic.run(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (torch.optim.SGD, "elastic.wrap was given the class SGD; give an optimizer made of it"),
        (net(), "elastic.wrap was given a model; give its optimizer"),
        (0.1, "elastic.wrap was given a value of type float; give a torch.optim.Optimizer"),
    ],
)
def test_what_is_not_an_optimizer_is_refused_by_wrap(given: Any, said: str) -> None:
    with pytest.raises(elastic.UsageError) as refused:
        elastic.wrap(given)
    assert said in one_line(refused.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Torchstate", "hvd_elastic_ext.torch has no Torchstate; did you mean TorchState?"),
        ("elasticsampler", "did you mean ElasticSampler?"),
        ("DataParallel", "hvd_elastic_ext.torch has no DataParallel; it has Checkpoint, "),
    ],
)
def test_a_name_that_the_module_does_not_have_is_told_with_the_nearest_one(name: str, said: str) -> None:
    with pytest.raises(AttributeError) as unknown:
        getattr(elastic, name)
    assert said in one_line(unknown.value)
