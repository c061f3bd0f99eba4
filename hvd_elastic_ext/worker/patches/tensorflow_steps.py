"""Steps of a TensorFlow script, for the heartbeats. Where a step is a graph, Python does not see it.

A Keras optimizer counts its ``apply_gradients`` itself, in a variable: a heartbeat reads that. In the style of
TensorFlow 1 each ``run`` of a monitored session is a step.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from typing import Any, Final

from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.steps import steps_of

_seen: Final = weakref.WeakKeyDictionary[Any, int | None]()
"""Optimizers that have applied gradients, with their counts at the last look; None if there was none."""
_lock: Final = threading.Lock()


def keras_optimizer(module: Any) -> None:
    """Patch a module of Keras that defines ``Optimizer``: its optimizers are known from their first step on."""
    kind = module.OptimizerV2 if hasattr(module, "OptimizerV2") else module.Optimizer
    kerass = kind.apply_gradients

    @functools.wraps(kerass)
    def apply_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self not in _seen:
            count = _count_before(self)  # a script may have loaded an optimizer that has made steps
            with _lock:
                _seen[self] = count
        standby.current().link.status.look = _look
        return kerass(self, *args, **kwargs)

    kind.apply_gradients = apply_gradients


def autograph(module: Any) -> None:
    """Keep TensorFlow's autograph from translating our functions: in a translated one ``int(optimizer.iterations)`` is
    a tensor. TensorFlow has such rules for Keras.
    """
    with contextlib.suppress(AttributeError):  # these names are not public
        module.CONVERSION_RULES = (module.DoNotConvert("hvd_elastic_ext"), *module.CONVERSION_RULES)


def monitored_session(module: Any) -> None:
    """Patch TensorFlow's module of monitored sessions."""
    kind = module._MonitoredSession
    tensorflows = kind.run

    @functools.wraps(tensorflows)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = tensorflows(self, *args, **kwargs)
        _count(1)
        return result

    kind.run = run


def _count_before(optimizer: Any) -> int | None:
    """The count of an optimizer, also where a graph is made; None if it cannot be read there."""
    tensorflow = sys.modules.get("tensorflow")
    with contextlib.suppress(Exception), contextlib.nullcontext() if tensorflow is None else tensorflow.init_scope():
        return steps_of(optimizer)
    return None


def _look() -> None:
    """Count the steps since the last look, on any thread. A variable of a graph cannot be read from here."""
    with _lock:
        new = 0
        for optimizer, seen in list(_seen.items()):
            with contextlib.suppress(Exception):
                count = _seen[optimizer] = steps_of(optimizer)  # a roll-back takes steps away
                new = max(new, 0 if seen is None else count - seen)
        if new > 0:
            _count(new)


def _count(steps: int) -> None:
    if (timer := standby.current().step_timer) is not None:
        timer.counted(steps)
