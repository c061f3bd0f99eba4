"""Elastic training for Horovod that keeps its promise.

Belongs here: the command ``hvd-elastic`` (``cli``), :mod:`hvd_elastic_ext.torch`, which PyTorch users import, and
:func:`run`, for notebooks.

Never here: anything else. Importing this package costs nothing: it loads neither torch, nor horovod, nor kubernetes.
"""

from __future__ import annotations

TYPE_CHECKING = False  # agents import this package, and start in milliseconds: without typing
if TYPE_CHECKING:
    from hvd_elastic_ext.jobs.local.run import run

__all__ = ["__version__", "run"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import :func:`run` when it is used."""
    if name != "run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hvd_elastic_ext.jobs.local.run import run

    return run
