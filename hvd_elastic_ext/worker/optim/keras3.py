"""Which values are of Keras 3, found without importing Keras, and what to do where Keras 3 cannot train.

Keras 2 (``tf_keras``, or ``tf.keras`` before TensorFlow 2.16) has other classes, and none of this concerns it. Standard
library only.
"""

from __future__ import annotations

import sys
from typing import Any, Final

TORCH: Final = "torch"
"""The backend of Keras 3 on which gradients are averaged and States are kept."""
ON_TORCH: Final = "KERAS_BACKEND=torch under --engine torch"
REMEDY: Final = (
    f"train with {ON_TORCH}, or for TensorFlow with Keras 2: pip install tf-keras, and set TF_USE_LEGACY_KERAS=1 "
    "before TensorFlow is imported"
)


def loaded() -> Any:
    """Return the module ``keras`` if this process has imported it and it is Keras 3 or later; else None."""
    module = sys.modules.get("keras")
    major = str(getattr(module, "__version__", "")).partition(".")[0]
    return module if major.isdigit() and int(major) >= 3 else None


def backend() -> str:
    """Return the name of the backend: "torch", "tensorflow", "jax" or another one; "" without Keras 3."""
    keras = loaded()
    return "" if keras is None else str(keras.config.backend())


def is_optimizer(value: object) -> bool:
    """Whether it is an optimizer of Keras 3."""
    return _is(value, "optimizers", "Optimizer")


def is_model(value: object) -> bool:
    """Whether it is a layer or a model of Keras 3."""
    return _is(value, "layers", "Layer")


def is_callback(value: object) -> bool:
    """Whether it is a callback of Keras 3."""
    return _is(value, "callbacks", "Callback")


def is_variable(value: object) -> bool:
    """Whether it is a variable of Keras 3, which no backend takes for one of its own."""
    return _is(value, "", "Variable")


def _is(value: object, module: str, name: str) -> bool:
    keras = loaded()
    # While Keras is being imported, it has some of these only.
    holder = getattr(keras, module, None) if module else keras
    kind = getattr(holder, name, None)
    return isinstance(kind, type) and isinstance(value, kind)
