"""Horovod's classes and errors if Horovod is installed; otherwise stand-ins with the same names.

Belongs here: the check whether Horovod is installed, and its classes, for all of the worker except collectives
(``comms.horovod``) and patches.

Never here: behaviour that Horovod does not have. With Horovod every name *is* Horovod's, so that ``except`` clauses and
``isinstance`` of users work. Without it, a State works under ``torchrun`` and ``mpirun``.
"""

from __future__ import annotations

from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError

HOW_TO_GET_HOROVOD: Final = "hvd-elastic build-horovod builds its wheel"


def _why_absent() -> str | None:
    try:
        # Not horovod.torch itself: without its native part it can be imported, but is empty.
        from horovod.torch import mpi_ops  # noqa: F401
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "horovod":
            return "Horovod is not installed"
        return f"Horovod cannot be imported ({' '.join(str(error).split())})"
    return None


WHY_ABSENT: Final = _why_absent()
"""Why this process has no Horovod; None if it has."""

PRESENT: Final = WHY_ABSENT is None


def demand(what: str) -> None:
    """Raise :class:`UsageError` if there is no Horovod: one line that says what to do. ``what`` needs Horovod."""
    if not PRESENT:
        raise UsageError(f"{what}: {WHY_ABSENT}; {HOW_TO_GET_HOROVOD}, or start with torchrun or mpirun")


if PRESENT:
    from horovod.common import elastic as _elastic
    from horovod.common import exceptions as _exceptions
    from horovod.torch.elastic import sampler as _sampler
    from horovod.torch.elastic import state as _state
else:
    from hvd_elastic_ext.worker.stock import stand_ins

    _elastic = _exceptions = _sampler = _state = stand_ins

HorovodInternalError: Final[Any] = _exceptions.HorovodInternalError
"""A peer was lost."""
HostsUpdatedInterrupt: Final[Any] = _exceptions.HostsUpdatedInterrupt
"""Hosts will change: this ends the training function between two steps."""

State: Final[Any] = _elastic.State
ObjectState: Final[Any] = _elastic.ObjectState
TorchState: Final[Any] = _state.TorchState
notification_manager: Final[Any] = _elastic.notification_manager
ElasticSampler: Final[Any] = _sampler.ElasticSampler

HANDLERS: Final[tuple[Any, ...]] = (
    (_state.ModelStateHandler, _state.OptimizerStateHandler, _state.SamplerStateHandler) if PRESENT else ()
)
"""Horovod's own handlers, which parts of ours replace."""


def registered_handlers() -> list[tuple[type, Any]]:
    """Return types and the handlers registered with Horovod for them."""
    return list(_state.get_handler_registry()) if PRESENT else []
