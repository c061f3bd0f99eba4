"""Horovod's functions for Keras refuse objects of Keras 3, with which they would do nothing, or fail."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.patches.keras3 import refuse_keras3, use_keras2
from tests.unit.worker import fake_keras


class State:
    def __init__(self, model: object, **values: object) -> None:
        self.model = model


class Broadcasts(fake_keras.Callback):
    """As Horovod's callback is if ``tf.keras`` is Keras 3."""

    def __init__(self, root_rank: int) -> None:
        self.root_rank = root_rank


def horovods() -> Any:
    """A module with the names that Horovod's have."""
    module = ModuleType("horovod.tensorflow.keras")
    vars(module).update(
        DistributedOptimizer=lambda optimizer, name=None: ("averages", optimizer),
        broadcast_variables=lambda variables, root_rank: variables,
        elastic=SimpleNamespace(KerasState=type("KerasState", (State,), {})),
        callbacks=SimpleNamespace(BroadcastGlobalVariablesCallback=type("Sends", (Broadcasts,), {})),
    )
    refuse_keras3(module)
    return module


CALLS = {
    "an optimizer": lambda hvd: hvd.DistributedOptimizer(fake_keras.Optimizer()),
    "an optimizer by name": lambda hvd: hvd.DistributedOptimizer(optimizer=fake_keras.Optimizer()),
    "variables": lambda hvd: hvd.broadcast_variables([fake_keras.Variable(None)], root_rank=0),
    "a State": lambda hvd: hvd.elastic.KerasState(fake_keras.Layer(), epoch=0),
    "a callback": lambda hvd: hvd.callbacks.BroadcastGlobalVariablesCallback(0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_of_keras_3_is_refused_in_one_line_that_names_both_ways_out(call: Any, monkeypatch: Any) -> None:
    fake_keras.use(monkeypatch)
    with pytest.raises(UsageError) as refused:
        call(horovods())
    said = str(refused.value)
    assert said.startswith("hvd.")
    assert "\n" not in said
    assert "KERAS_BACKEND=torch under --engine torch" in said
    assert "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported" in said


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("version", ["2.15.0", ""])
def test_keras_2_is_let_through(call: Any, version: str, monkeypatch: Any) -> None:
    fake_keras.use(monkeypatch, version=version)
    assert call(horovods()) is not None


def test_without_keras_everything_is_let_through_and_a_second_time_changes_nothing(monkeypatch: Any) -> None:
    monkeypatch.delitem(__import__("sys").modules, "keras", raising=False)
    module = horovods()
    changed = module.DistributedOptimizer
    refuse_keras3(module)
    assert module.DistributedOptimizer is changed
    assert module.DistributedOptimizer("one") == ("averages", "one")


@pytest.mark.parametrize("version", [2, 3])
def test_horovods_callbacks_get_the_backend_of_keras_2_where_tensorflow_has_it(version: int) -> None:
    """Horovod imports ``keras.backend``, which is that of Keras 3 if both are installed."""
    found, wanted = object(), SimpleNamespace(**({"get_value": float} if version == 2 else {}))
    module = ModuleType("horovod.tensorflow.keras")
    vars(module).update(keras=SimpleNamespace(backend=wanted), K=found, callbacks=SimpleNamespace(K=found))
    use_keras2(module)
    assert vars(module)["K"] is module.callbacks.K is (wanted if version == 2 else found)
