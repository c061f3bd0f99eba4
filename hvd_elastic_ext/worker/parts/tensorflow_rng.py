"""TensorFlow's random generators: the global one, and those of Keras' layers.

A ``tf.random.Generator`` has its state in a variable, so it is rolled back exactly. Every other random operation of
TensorFlow (``tf.random.normal``, the dropout of Keras' layers as they are by default) has its state within TensorFlow,
where it can be neither read nor set: it goes on after a roll-back. After
``tf.keras.backend.experimental.enable_tf_random_generator()`` the layers that are built have generators.

Imports TensorFlow only where it is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

_GLOBAL: Final = "tensorflow.python.ops.stateful_random_ops"
"""Where the global generator is. TensorFlow's own function to get it makes one if there is none."""


def global_state() -> Any:
    """Return the state of ``tf.random.get_global_generator()`` as plain values; None if there is no such generator."""
    made = getattr(sys.modules.get(_GLOBAL), "global_generator", None)
    return None if made is None else generator_states([made])[0]


def restore_global(state: Any) -> None:
    """Restore it; make it if there is none. Without TensorFlow nothing is restored."""
    if state is None or _GLOBAL not in sys.modules:
        return
    import tensorflow as tf

    algorithm, numbers = state
    made = getattr(sys.modules[_GLOBAL], "global_generator", None)
    if made is not None and int(made.algorithm) == algorithm:
        restore_generators([made], [state])
    else:
        tf.random.set_global_generator(tf.random.Generator.from_state(numbers, algorithm))


def seed_global(seed: int) -> None:
    """Seed it, if there is one."""
    made = getattr(sys.modules.get(_GLOBAL), "global_generator", None)
    if made is not None:
        seed_generators([made], seed)


def generator_states(generators: Sequence[Any]) -> list[Any]:
    """Return the states of generators as plain values."""
    return [[int(made.algorithm), made.state.numpy().tolist()] for made in generators]


def restore_generators(generators: Sequence[Any], states: Any) -> None:
    """Restore generators from the result of :func:`generator_states`. One of another algorithm stays as it is."""
    for made, (algorithm, numbers) in zip(generators, states, strict=False):
        if int(made.algorithm) == algorithm:
            made.reset(numbers)


def seed_generators(generators: Sequence[Any], seed: int) -> None:
    """Seed generators, each in another way."""
    for number, made in enumerate(generators):
        made.reset_from_seed(seed + number)
