"""Elastic training for Horovod that keeps its promise.

Belongs here: the command ``hvd-elastic`` (``cli``), :mod:`hvd_elastic_ext.torch`, which PyTorch users import, and
:func:`run`, for notebooks.

Never here: anything else. Importing this package costs nothing: it loads neither torch, nor horovod, nor kubernetes.
"""

from __future__ import annotations

TYPE_CHECKING = False  # agents import this package, and start in milliseconds: without typing
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

__version__ = "0.1.0"


def run(
    train: Callable[..., Any],
    args: Iterable[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    hosts: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
    **horovods: Any,
) -> list[Any]:
    """Run ``train(*args, **kwargs)`` in ``np`` processes as an elastic job, and return what each rank returned.

    As ``horovod.run``, whose other arguments are taken, too: ``min_np``, ``max_np``, ``num_proc``, ``slots``,
    ``hostfile``, ``host_discovery_script``, ``reset_limit`` and more. ``hosts``: a list such as ``localhost:2``, or a
    hosts file, which may change meanwhile; names of this machine (default: ``np`` slots of it). ``options``: more of
    ``hvd-elastic run``. Output is written to ``sys.stdout``.

    ``train`` joins the world itself, as a script does: ``elastic.init()``, or a State. It is sent by its name if it is
    in a module, else as its source with all that it uses. Arguments and results are what a State may hold: plain
    values, tensors, NumPy arrays and scalars, data classes. Nothing is pickled.

    The list has the ranks of the last world, in order. Raises ``UsageError`` for what cannot be sent, and
    ``JobFailed``, also for a result that cannot be sent back, with the reason.
    """
    from importlib import import_module  # by name: what imports this package is not to depend on jobs

    job = import_module("hvd_elastic_ext.jobs.local.run")
    found: list[Any] = job.run(train, args=args, kwargs=kwargs, np=np, hosts=hosts, options=options, **horovods)
    return found
