"""Steps of a TensorFlow script, for the heartbeats. Where a step is a graph, Python does not see it.

A Keras optimizer counts its ``apply_gradients`` itself, in a variable: a heartbeat reads that. In the style of
TensorFlow 1 each ``run`` of a monitored session is a step.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from typing import Any, Final

from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.steps import steps_of

_optimizers: Final = weakref.WeakSet[Any]()
"""Those that have applied gradients."""
_seen: Final = [0]
_lock: Final = threading.Lock()


def keras_optimizer(module: Any) -> None:
    """Patch a module of Keras that defines ``Optimizer``: its optimizers are known from their first step on."""
    kind = module.OptimizerV2 if hasattr(module, "OptimizerV2") else module.Optimizer
    kerass = kind.apply_gradients

    @functools.wraps(kerass)
    def apply_gradients(self: Any, *args: Any, **kwargs: Any) -> Any:
        _optimizers.add(self)
        standby.current().link.status.look = _look
        return kerass(self, *args, **kwargs)

    kind.apply_gradients = apply_gradients


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


def _look() -> None:
    """Count the steps since the last look, on any thread. A variable of a graph cannot be read from here."""
    with _lock:
        counts = [0]
        for optimizer in list(_optimizers):
            with contextlib.suppress(Exception):
                counts.append(steps_of(optimizer))
        new = max(counts) - _seen[0]
        _seen[0] += new  # a roll-back takes steps away
        if new > 0:
            _count(new)


def _count(steps: int) -> None:
    if (timer := standby.current().step_timer) is not None:
        timer.counted(steps)
