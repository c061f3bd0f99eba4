"""Horovod's classes and errors if Horovod is installed; otherwise stand-ins with the same names.

Belongs here: which Horovod this process has, and its classes, for all of the worker except collectives
(``comms.horovod``, ``comms.horovod_tensorflow``) and patches.

Never here: behaviour that Horovod does not have. With Horovod every name *is* Horovod's, so that ``except`` clauses and
``isinstance`` of users work. Without it, a State works under ``torchrun`` and ``mpirun``.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Literal

from hvd_elastic_ext.core.errors import UsageError

HOW_TO_GET_HOROVOD: Final = "hvd-elastic build-horovod builds its wheel"

Framework = Literal["torch", "tensorflow"]


def _find() -> tuple[Framework | None, str | None]:
    """The framework whose library of Horovod carries this process's worlds; None and why, without Horovod.

    Each framework has a library of its own, with its own world: a process must use only one. A script uses that of
    TensorFlow if it imports our module for it before the one for torch, or ``horovod.tensorflow`` alone.
    """
    alone = "horovod.tensorflow" in sys.modules and "horovod.torch" not in sys.modules
    if alone or "hvd_elastic_ext.tensorflow" in sys.modules:
        return "tensorflow", None
    try:
        # Not horovod.torch itself: without its native part it can be imported, but is empty.
        from horovod.torch import mpi_ops  # noqa: F401
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "horovod":
            return None, "Horovod is not installed"
        return None, f"Horovod cannot be imported ({' '.join(str(error).split())})"
    return "torch", None


_FOUND: Final = _find()
FRAMEWORK: Final = _FOUND[0]
"""The framework of this process's Horovod; None if it has none."""
WHY_ABSENT: Final = _FOUND[1]
"""Why this process has no Horovod; None if it has."""

PRESENT: Final = FRAMEWORK is not None
FOR_TORCH: Final = FRAMEWORK == "torch"
"""Whether this process has ``horovod.torch``."""


def demand(what: str) -> None:
    """Raise :class:`UsageError` if there is no Horovod: one line that says what to do. ``what`` needs Horovod."""
    if not PRESENT:
        raise UsageError(f"{what}: {WHY_ABSENT}; {HOW_TO_GET_HOROVOD}, or start with torchrun or mpirun")


if PRESENT:
    from horovod.common import elastic as _elastic
    from horovod.common import exceptions as _exceptions
else:
    from hvd_elastic_ext.worker.stock import stand_ins as _exceptions

    _elastic = _exceptions
if FOR_TORCH:
    from horovod.torch.elastic import sampler as _sampler
    from horovod.torch.elastic import state as _state
else:
    from hvd_elastic_ext.worker.stock import stand_ins as _sampler

    _state = None

HorovodInternalError: Final[Any] = _exceptions.HorovodInternalError
"""A peer was lost."""
HostsUpdatedInterrupt: Final[Any] = _exceptions.HostsUpdatedInterrupt
"""Hosts will change: this ends the training function between two steps."""

State: Final[Any] = _elastic.State
ObjectState: Final[Any] = _elastic.ObjectState
TorchState: Final[Any] = _state.TorchState if FOR_TORCH else _sampler.torch_state(ObjectState)
notification_manager: Final[Any] = _elastic.notification_manager
ElasticSampler: Final[Any] = _sampler.ElasticSampler

HANDLERS: Final[tuple[Any, ...]] = (
    (_state.ModelStateHandler, _state.OptimizerStateHandler, _state.SamplerStateHandler) if FOR_TORCH else ()
)
"""Horovod's own handlers, which parts of ours replace."""


def registered_handlers() -> list[tuple[type, Any]]:
    """Return types and the handlers registered with Horovod for them."""
    return list(_state.get_handler_registry()) if FOR_TORCH else []
