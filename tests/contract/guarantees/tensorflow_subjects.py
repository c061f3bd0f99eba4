"""States of TensorFlow, of every kind of the table: ours, Horovod's and a user's own with our mixin, and unmodified.

Import it in a process that trains with TensorFlow, and with ``TF_USE_LEGACY_KERAS``.
"""

from __future__ import annotations

import copy
from typing import Any

import horovod.tensorflow as hvd  # first: our own modules take the world of this one
import horovod.tensorflow.keras as hvd_keras
import numpy
import tensorflow as tf
import torch
from horovod.common.elastic import State as StockState

import hvd_elastic_ext.keras as elastic
from hvd_elastic_ext.worker.sync.exchange import fingerprint

DATA = numpy.linspace(-1, 1, 24, dtype="float32").reshape(8, 3)


class Own(StockState):
    """A careful one of a user's: copies what it saves, broadcasts everything from rank 0."""

    def __init__(self, model: Any, optimizer: Any, **values: Any) -> None:
        super().__init__(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)
        self.model, self.optimizer = model, optimizer
        self.rank = hvd.rank()
        self.batch, self.history = values["batch"], values["history"]
        self.data = values.get("data")

    def rest(self) -> tuple[Any, ...]:
        return self.batch, self.history, None if self.data is None else self.data.state_dict()

    def take(self, rest: tuple[Any, ...]) -> None:
        self.batch, self.history, consumed = rest
        if self.data is not None:
            self.data.load_state_dict(consumed)

    def save(self) -> None:
        self._arrays = [variable.numpy().copy() for variable in variables_of(self)]
        self._rest = copy.deepcopy(self.rest())

    def restore(self) -> None:
        for variable, array in zip(variables_of(self), self._arrays, strict=True):
            variable.assign(array)
        self.take(self._rest)

    def sync(self) -> None:
        hvd.broadcast_variables(variables_of(self), root_rank=0)
        self.take(hvd.broadcast_object(self.rest(), root_rank=0))


class Sloppy(Own):
    """Saves the live list itself: its own roll-back does not change it."""

    def save(self) -> None:
        self._arrays = [variable.numpy() for variable in variables_of(self)]
        self._rest = self.rest()


def variables_of(state: Any) -> list[Any]:
    """What a State of these trains, slots included."""
    if hasattr(state, "variables"):
        return list(state.variables)
    slots = state.optimizer.variables
    return [*state.model.variables, *(slots() if callable(slots) else slots)]


def of_variables(kind: Any) -> Any:
    """Make a State of a list of variables as the others are made."""

    def make(model: Any, optimizer: Any, **values: Any) -> Any:
        slots = optimizer.variables
        return kind([*model.variables, *(slots() if callable(slots) else slots)], **values)

    return make


def mixed(old: type) -> Any:
    return type(f"Mixed{old.__name__}", (elastic.ElasticMixin, old), {})


HOROVODS = {
    "keras_loop": hvd.elastic.TensorFlowKerasState,
    "keras_fit": hvd_keras.elastic.KerasState,
    "variables": of_variables(hvd.elastic.TensorFlowState),
}
USERS: dict[str, Any] = {"own": Own, "sloppy": Sloppy}
KINDS: dict[str, dict[str, Any]] = {
    "ours": {
        "keras_loop": elastic.TensorFlowKerasState,
        "keras_fit": elastic.KerasState,
        "variables": of_variables(elastic.TensorFlowState),
    },
    "over_horovods": {
        "keras_loop": mixed(hvd.elastic.TensorFlowKerasState),
        "keras_fit": mixed(hvd_keras.elastic.KerasState),
        "variables": of_variables(mixed(hvd.elastic.TensorFlowState)),
    },
    "over_users": {name: mixed(kind) for name, kind in USERS.items()},
    "unmodified": {**HOROVODS, **USERS},
}
"""By the row of the table, and a name of its own in that."""
EACH = {f"{row} {name}": make for row, kinds in KINDS.items() for name, make in kinds.items()}


class OfTensorFlow:
    """A State of TensorFlow with a small model and Adam. ``seed``: of the weights."""

    def __init__(self, make: Any, *, seed: int = 1, **values: Any) -> None:
        dense = tf.keras.layers.Dense(2)
        self.model = tf.keras.Sequential([tf.keras.Input((3,)), dense, tf.keras.layers.BatchNormalization()])
        dense.kernel.assign(tf.random.stateless_uniform(dense.kernel.shape, (seed, 1)))
        self.optimizer = tf.keras.optimizers.Adam(0.1)
        self.optimizer.build(self.model.trainable_variables)  # Horovod's own State does not
        self.state = make(self.model, self.optimizer, **{"batch": 0, "history": [], **values})

    def train(self) -> None:
        """One step on this rank alone."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.model(DATA, training=True) ** 2)
        weights = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.state.batch += 1
        self.state.history.append(self.state.batch)

    def look(self) -> str:
        slots = self.optimizer.variables
        variables = [*self.model.variables, *(slots() if callable(slots) else slots)]
        contents = [torch.from_numpy(numpy.array(variable.numpy())) for variable in variables]
        return fingerprint([contents, self.state.batch, self.state.history])
