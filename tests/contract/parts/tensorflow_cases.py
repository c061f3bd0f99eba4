"""The same for TensorFlow: each function imports it, because other processes collect these tests, too."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from hvd_elastic_ext.worker.parts import tensorflow_parts
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames
from tests.contract.parts.cases import Case
from tests.support.tensorflow import load

KINDS = (
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
)  # fmt: skip
"""Types of variables that are kept."""


@contextlib.contextmanager
def of_tensorflow() -> Iterator[Any]:
    """TensorFlow. While it is loaded, and while Keras is, they warn of themselves."""
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings(
                "ignore", category=kind, module=r"(tensorflow|tf_keras|keras|google|flatbuffers)\b.*"
            )
        yield load()


def around(value: Any) -> Any:
    found = tensorflow_parts.part_for(value, ParameterNames())
    assert found is not None
    return found


def network(tf: Any) -> Any:
    """With what makes trouble: moving means, a frozen layer, dropout, one layer that is there twice."""
    twin = tf.keras.layers.Dense(3, activation="tanh")
    frozen = tf.keras.layers.Dense(3, trainable=False)
    norm = tf.keras.layers.BatchNormalization()
    return tf.keras.Sequential([tf.keras.Input((3,)), twin, norm, frozen, twin, tf.keras.layers.Dropout(0.0)])


def fill(tf: Any, net: Any, seed: int) -> Any:
    """Fill a model's variables by a seed, which no later test finds in TensorFlow."""
    for number, variable in enumerate(net.variables):
        variable.assign(tf.random.stateless_uniform(variable.shape, [seed, number], 0.1, 1.0))
    return net


def gradients(tf: Any, net: Any) -> list[tuple[Any, Any]]:
    data = tf.reshape(tf.linspace(-1.0, 1.0, 12), (4, 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(net(data, training=True) ** 2)
    return list(zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True))


def model(seed: int) -> Case:
    with of_tensorflow() as tf:
        net = fill(tf, network(tf), seed)
        optimizer = tf.keras.optimizers.SGD(0.1)
        return Case(around(net), lambda: optimizer.apply_gradients(gradients(tf, net)), model)


class Weights:
    """What is trained, which belongs to another part: at each step it is the same for all."""

    def __init__(self, tf: Any) -> None:
        self._initial = [tf.constant([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]]), tf.constant([0.25, -1.0])]
        self.trainable_variables = [tf.Variable(value, name=f"weight_{n}") for n, value in enumerate(self._initial)]

    def gradients(self, factor: Any = 1.0) -> list[tuple[Any, Any]]:
        for variable, value in zip(self.trainable_variables, self._initial, strict=True):
            variable.assign(value)
        return [(2.0 * variable * factor, variable) for variable in self.trainable_variables]


def optimizer_of(seed: int, make: Callable[[Any], Any]) -> Case:
    """The learning rate changes, if it can."""
    with of_tensorflow() as tf:
        weights, optimizer = Weights(tf), make(tf)
        tensorflow_parts.build(optimizer, weights)

        def change() -> None:
            scaled = getattr(optimizer, "get_scaled_loss", None)
            factor = 1.0 if scaled is None else scaled(tf.constant(1.0))
            for _ in range(getattr(getattr(optimizer, "_agg_helper", None), "backward_passes_per_step", 1)):
                optimizer.apply_gradients(weights.gradients(factor))
            with contextlib.suppress(TypeError):  # of a schedule it cannot be set
                optimizer.learning_rate = optimizer.learning_rate * 0.5

        return Case(around(optimizer), change, partial(optimizer_of, make=make))


def variables(seed: int) -> Case:
    """One of each type; a scalar, an empty one, and one of open shape, which grows."""
    with of_tensorflow() as tf:
        kept = [tf.Variable(tf.cast([seed % 2, 0, 1], kind), name=kind) for kind in KINDS]
        scalar, empty = tf.Variable(float(seed)), tf.Variable(tf.zeros((0, 3)))
        grows = tf.Variable(tf.ones((seed, 2)), shape=tf.TensorShape([None, 2]))
        any_shape = tf.Variable(float("nan"), shape=tf.TensorShape(None))
        kept += [scalar, empty, grows, any_shape]

        def change() -> None:
            for variable in kept[: len(KINDS)]:
                if variable.dtype.is_bool:
                    variable.assign(tf.logical_not(variable))
                else:
                    variable.assign(tf.cast(tf.cast(variable, "complex128") * 2 + 1, variable.dtype))
            scalar.assign_add(1.0)
            grows.assign(tf.concat([grows, [[scalar, -0.0]]], 0))
            any_shape.assign(tf.ones((int(scalar), 1)))

        return Case(tensorflow_parts.VariablesPart(kept, lambda: kept), change, variables)


def module(seed: int) -> Case:
    with of_tensorflow() as tf:

        class Own(tf.Module):
            def __init__(self) -> None:
                self.weight = tf.Variable(tf.fill((2,), float(seed)))
                self.count = tf.Variable(0, trainable=False)

        made = Own()

        def change() -> None:
            made.weight.assign_add([1.0, 2.0])
            made.count.assign_add(1)

        return Case(around(made), change, module)


def generator(seed: int) -> Case:
    with of_tensorflow() as tf:
        made = tf.random.Generator.from_seed(seed)
        return Case(around(made), lambda: made.normal((3,)), generator)


def _decaying(tf: Any) -> Any:
    return tf.keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda tf: tf.keras.optimizers.Adam(),
    "Nadam": lambda tf: tf.keras.optimizers.Nadam(),
    "SGD with momentum": lambda tf: tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "legacy SGD": lambda tf: tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9),
    "LossScaleOptimizer": lambda tf: tf.keras.mixed_precision.LossScaleOptimizer(
        tf.keras.optimizers.Adam(), initial_scale=8, dynamic_growth_steps=2
    ),
    "LossScaleOptimizer around a legacy one": lambda tf: tf.keras.mixed_precision.LossScaleOptimizer(
        tf.keras.optimizers.legacy.SGD(0.1, momentum=0.9), initial_scale=8, dynamic_growth_steps=2
    ),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "Adam with amsgrad and an average": lambda tf: tf.keras.optimizers.Adam(amsgrad=True, use_ema=True),
    "Adam with a schedule": lambda tf: tf.keras.optimizers.Adam(_decaying(tf)),
    "AdamW": lambda tf: tf.keras.optimizers.AdamW(),
    "SGD": lambda tf: tf.keras.optimizers.SGD(0.1),
    "RMSprop": lambda tf: tf.keras.optimizers.RMSprop(centered=True, momentum=0.1),
    "Adagrad": lambda tf: tf.keras.optimizers.Adagrad(),
    "Adadelta": lambda tf: tf.keras.optimizers.Adadelta(),
    "Adamax": lambda tf: tf.keras.optimizers.Adamax(),
    "Adafactor": lambda tf: tf.keras.optimizers.Adafactor(),
    "Ftrl": lambda tf: tf.keras.optimizers.Ftrl(),
    "Lion": lambda tf: tf.keras.optimizers.Lion(),
    "legacy Adam": lambda tf: tf.keras.optimizers.legacy.Adam(),
    "legacy Nadam": lambda tf: tf.keras.optimizers.legacy.Nadam(),
}
"""These are only rolled back."""


def _of_horovod(tf: Any, make: Callable[[Any], Any], **options: Any) -> Any:
    import horovod.tensorflow.keras as hvd

    return hvd.DistributedOptimizer(make(tf), **options)


OF_HOROVOD: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda tf: _of_horovod(tf, OPTIMIZERS["Adam"]),
    "Adam of two passes": lambda tf: _of_horovod(tf, OPTIMIZERS["Adam"], backward_passes_per_step=2),
    "legacy SGD": lambda tf: _of_horovod(tf, OPTIMIZERS["legacy SGD"]),
    "Adam within a LossScaleOptimizer": lambda tf: tf.keras.mixed_precision.LossScaleOptimizer(
        _of_horovod(tf, OPTIMIZERS["Adam"]), initial_scale=8, dynamic_growth_steps=2
    ),
}
"""They need a world of Horovod for TensorFlow, so they are tried in a process of their own: horovods_optimizers.py."""

CASES: dict[str, Callable[[int], Case]] = {
    "Keras model": model,
    **{f"Keras {name}": partial(optimizer_of, make=make) for name, make in OPTIMIZERS.items()},
    "variables": variables,
    "tf.Module": module,
    "tf.random.Generator": generator,
}
HOROVODS_CASES: dict[str, Callable[[int], Case]] = {
    name: partial(optimizer_of, make=make) for name, make in OF_HOROVOD.items()
}
