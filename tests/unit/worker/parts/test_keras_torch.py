"""Models and optimizers of Keras 3 in a State. What their parts promise is in ``tests/contract/parts``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hvd_elastic_ext.torch as elastic
from hvd_elastic_ext.core.errors import StateError
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.comms.horovod import HorovodComms
from hvd_elastic_ext.worker.parts.choose import part_of_ours
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames
from hvd_elastic_ext.worker.state.contents import Inventory
from tests.unit.worker import fake_keras
from tests.unit.worker.fake_keras import Layer, Optimizer, Variable


@pytest.fixture(autouse=True)
def keras(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_keras.use(monkeypatch)
    monkeypatch.setattr(current_world, "comms", lambda: None)


def inventory(**values: Any) -> Inventory:
    names = ParameterNames()
    parts = {name: part_of_ours(value, names) for name, value in values.items()}
    names.models = lambda: {name: value for name, value in values.items() if isinstance(value, Layer)}
    return Inventory(object(), parts, names=(), part_for=lambda value: part_of_ours(value, names))


def compiled(optimizer: Optimizer) -> Layer:
    model = Layer()
    model.compile(optimizer)
    return model


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("value", [Optimizer(), Layer()], ids=["optimizer", "model"])
def test_another_backend_is_refused_when_the_state_is_made(
    monkeypatch: pytest.MonkeyPatch, backend: str, value: Any
) -> None:
    fake_keras.use(monkeypatch, backend=backend)
    with pytest.raises(StateError, match=f"is of Keras 3 on the backend {backend}, .* KERAS_BACKEND=torch"):
        elastic.TorchState(anything=value)


@pytest.mark.parametrize("value", [Optimizer(), Layer()], ids=["optimizer", "model"])
def test_a_world_of_horovod_is_refused(monkeypatch: pytest.MonkeyPatch, value: Any) -> None:
    monkeypatch.setattr(current_world, "comms", HorovodComms)
    monkeypatch.setenv("HOROVOD_ELASTIC", "1")
    with pytest.raises(StateError, match=r"does not train in a world of Horovod; give --engine torch$"):
        inventory(kept=value)


def test_an_optimizer_is_built_from_the_model_that_is_compiled_with_it() -> None:
    optimizer = Optimizer()
    model, other = compiled(optimizer), Layer()
    inventory(model=model, other=other, optimizer=optimizer).write()
    assert optimizer._trainable_variables == model.trainable_variables


def test_an_optimizer_without_a_model_is_refused_until_it_is_built() -> None:
    optimizer = Optimizer()
    with pytest.raises(StateError, match=r"no variables yet; call optimizer\.build\(model\.trainable_variables\)"):
        inventory(optimizer=optimizer).write()
    optimizer.build([Variable(torch.ones(2))])
    assert len(inventory(optimizer=optimizer).write().tensors) == 1


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(StateError, match=r"the model \(Layer\) has no weights yet; give it an Input, or call it once"):
        inventory(model=Layer(built=False)).write()


def test_a_model_whose_optimizer_would_not_roll_back_is_refused_also_when_it_is_compiled_later() -> None:
    optimizer, model = Optimizer(), Layer()
    kept = inventory(model=model)
    kept.write()
    model.compile(optimizer)
    with pytest.raises(StateError, match=r"compiled with an optimizer \(Optimizer\) .*: optimizer=model\.optimizer"):
        kept.write()
    inventory(model=model, another_name=optimizer).write()


def test_what_a_rank_learns_from_its_own_rows_alone_is_not_taken_for_equal_on_all_ranks() -> None:
    """Keras keeps the statistics of its layers as parameters that are not trained."""
    model = Layer()
    written = inventory(model=model).write()
    firm = {id(tensor): firm for tensor, firm in zip(written.tensors, written.firm, strict=True)}
    assert firm == {id(model.weight): True, id(model.mean): False}


@pytest.mark.parametrize("given", [[torch.zeros(2)], [torch.zeros(()), torch.zeros(())], {"other": 1}, 3])
def test_values_of_another_optimizer_are_refused_and_change_nothing(given: Any) -> None:
    optimizer = Optimizer()
    optimizer.build([])
    optimizer.steps.value.fill_(5)
    part = part_of_ours(optimizer, ParameterNames())
    with pytest.raises(StateError, match=r"not values of the 1 variables of the State's optimizer \(Optimizer\)"):
        part.restore({"variables": given})
    with pytest.raises(StateError, match=r"not values of the 1 variables of the State's optimizer \(Optimizer\)"):
        part.fitted(given)
    assert optimizer.steps.value.item() == 5


def test_a_list_of_its_variables_is_taken_from_a_file() -> None:
    optimizer = Optimizer()
    optimizer.build([])
    part = part_of_ours(optimizer, ParameterNames())
    part.restore(part.fitted([torch.tensor(7.0)]))
    assert optimizer.steps.value.item() == 7
