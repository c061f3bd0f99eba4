"""Refuses Keras 3 where Horovod would train wrongly with it, and has Horovod use Keras 2 where that is there.

Keras 3 calls no method in which Horovod's optimizer averages, so each rank trains alone, and nothing says so. What else
of Horovod takes Keras' objects fails with an error that does not name the reason.

Standard library only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.optim import keras3

MODULES: Final = ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras")
"""The modules of Horovod that :func:`refuse_keras3` is for."""
_INNER: Final = ("callbacks", "elastic")
"""Modules within them that have such functions and classes, too."""
_NAMES: Final = (
    "DistributedOptimizer",
    "broadcast_variables",
    "TensorFlowKerasState",
    "KerasState",
    "BroadcastGlobalVariablesCallback",
    "MetricAverageCallback",
)
_DONE: Final = "hvd_elastic_refuses_keras3"


def refuse_keras3(module: ModuleType) -> None:
    """Make functions and classes of one of Horovod's :data:`MODULES` raise :class:`UsageError` for objects of Keras 3.

    Call it when the module is loaded. A second call changes nothing.
    """
    for owner in (module, *(getattr(module, name, None) for name in _INNER)):
        for name in _NAMES:
            entry = getattr(owner, name, None)
            if entry is None or _DONE in vars(entry):
                continue
            if isinstance(entry, type):
                entry.__init__ = _refusing(entry.__init__, name)  # type: ignore[misc]
                setattr(entry, _DONE, True)
            else:
                setattr(owner, name, _refusing(entry, name))


def use_keras2(module: ModuleType) -> None:
    """Give ``horovod.tensorflow.keras`` the backend of Keras 2, where TensorFlow has that.

    It imports ``keras.backend``, which from TensorFlow 2.16 on is that of Keras 3 and lacks most of what the callbacks
    call.
    """
    if module.__name__ != "horovod.tensorflow.keras" or not hasattr(module.keras.backend, "get_value"):
        return
    for owner in (module, module.callbacks):
        vars(owner)["K"] = module.keras.backend


def _refusing(horovods: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(horovods)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            _demand_none_of_keras3(value, name)
        return horovods(*args, **kwargs)

    setattr(checked, _DONE, True)
    return checked


def _demand_none_of_keras3(value: object, name: str) -> None:
    if keras3.is_optimizer(value):
        raise UsageError(
            f"hvd.{name} was given {type(value).__name__}, an optimizer of Keras 3: Horovod does not average its "
            f"gradients, and each rank would train alone; {keras3.REMEDY}"
        )
    if keras3.is_callback(value) or keras3.is_model(value) or _has_variables(value):
        raise UsageError(f"hvd.{name} does not work with Keras 3; {keras3.REMEDY}")


def _has_variables(value: object) -> bool:
    return isinstance(value, list | tuple) and any(map(keras3.is_variable, value))
