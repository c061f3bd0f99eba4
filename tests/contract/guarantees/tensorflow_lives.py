"""What the lives of ``killed_processes.py`` train with under TensorFlow, whose threads begin with the first operation:
the parent does none, so it can be forked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import horovod.tensorflow as hvd  # first: our own modules take the world of this one
import tensorflow as tf

from tests.contract.guarantees.tensorflow_subjects import EACH, variables_of


def prepare() -> None:
    """Import what every fork needs: Keras is loaded at its first use."""
    assert tf.keras.layers.Dense


@contextlib.contextmanager
def world() -> Iterator[None]:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    yield


def build(kind: str) -> Any:
    layers = [tf.keras.Input((64,))] + [tf.keras.layers.Dense(64, kernel_initializer="zeros") for _ in range(3)]
    model, optimizer = tf.keras.Sequential(layers), tf.keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    return EACH[kind](model, optimizer, batch=0, history=[])


def arrays(state: Any) -> list[Any]:
    """The weights and Adam's slots."""
    return [variable for variable in variables_of(state) if variable.shape.rank]


def fill(state: Any, number: int) -> None:
    """Put a number into everything that the State keeps."""
    for variable in arrays(state):
        variable.assign(tf.fill(variable.shape, tf.cast(number, variable.dtype)))


def whole(state: Any) -> bool:
    """Everything in the State is of one and the same commit."""
    same = all(bool((variable.numpy() == state.batch).all()) for variable in arrays(state))
    return same and state.history == list(range(1, state.batch + 1))[-5:]
