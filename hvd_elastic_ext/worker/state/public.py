"""What the public module of every framework has: the decorator of the training function, and calls in a script."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, overload

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.patches import horovod_hook
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.state.importing import Names, Source
from hvd_elastic_ext.worker.state.loop import elastic
from hvd_elastic_ext.worker.state.mixin import StateMethods

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")
_NONE: Final = object()


def init(comms: str = "auto") -> None:
    """Join the world of the launcher that started this process: Horovod's, torchrun's or ``mpirun``'s.

    Under Horovod ``hvd.init()`` does the same. ``comms``: a library, such as "torch", or "auto" (docs/comms.md).

    Raises :class:`UsageError` for a library that is not usable here, and for a world of one process if the launcher has
    started more.
    """
    current_world.init(comms)


@overload
def run(func: Callable[P, R]) -> Callable[P, R]: ...


@overload
def run() -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def run(func: Any = _NONE) -> Any:
    """Decorate the training function, or a method; its first argument (after ``self``) is the State.

    Before each call of ``func`` the State is synced. After the loss of a peer it first rolls back; after a change of
    hosts it does not. If the next world does not form, ``run`` makes up to five attempts with growing pauses, and then
    raises the error of the last one. Raises :class:`UsageError` for a class, and for a call without a State.
    ``@run()`` is the same as ``@run``.
    """
    if func is _NONE:
        return run
    return elastic(
        func,
        reset=_next_world,
        notifications=stock.notification_manager,
        clock=SystemClock(),
        whole=partial(horovod_hook.in_training, rejoin=_next_world, lost_by=_lost_by),
        synced=standby.current().synced,
        lost_by=_lost_by,
    )


def check_alive() -> bool:
    """Return False as soon as this process must leave. Cheap enough for every batch.

    The process is then not part of the next world, or its host or the whole job is about to end. ``commit`` and
    ``check_host_updates`` end the training function in time, so the script need not act.
    """
    return standby.current().alive()


def heartbeat() -> None:
    """Report progress. Call it in code that runs long without a step, a commit or a check (evaluation, compilation)."""
    standby.current().link.status.progress += 1


def on_removed(callback: Callable[[], object]) -> Callable[[], object]:
    """Call ``callback()`` when this process must leave and its world has ended; it then exits with 0.

    By then, a new commit contains the changes since the last one. Usable as a decorator. Callbacks run in order; their
    exceptions are logged.
    """
    standby.current().on_removed(callback)
    return callback


def load_checkpoint(state: Any, source: Source, names: Names = None) -> bool:
    """Start from an earlier checkpoint: a file of ``torch.save``, or of ``hvd-elastic checkpoints export``.

        elastic.load_checkpoint(state, "old.pt", names={"model": "state_dict", "epoch": "epoch"})
        train(state)

    ``source``: the path of the file, or a dict with its content. The file is read as plain values and tensors; nothing
    in it is executed. ``names``: names in the State with their names in the file (None: the whole file); a list of
    names where both are equal. Without it, State and file must have the same names. A prefix ``module.`` of all names
    of a model is dropped. Values without a name stay as they are.

    One rank with the file is enough: the others get it in the first sync. If no rank has it, all get an error. If the
    job resumes from its own checkpoint, or from a commit that outlived its process, that one is newer: nothing is
    loaded, and a message reports it. Returns True if the file was loaded here.

    Raises :class:`StateError`, one line, for a file that does not fit this State, and :class:`UsageError` after the
    start of training, or for a State that is not ours.
    """
    if not isinstance(state, StateMethods):
        raise UsageError(
            f"{type(state).__name__} cannot load a checkpoint; use elastic.TorchState, or elastic.ElasticMixin"
        )
    return state._keeper.load(source, names)


def _lost_by(error: BaseException) -> bool:
    comms = current_world.comms() or (current_world.HorovodComms() if stock.PRESENT else None)
    return comms is not None and comms.lost_by(error)


def _next_world() -> None:
    (current_world.comms() or current_world.HorovodComms()).reset()


def no_such_name(module: str, names: Sequence[str], name: str) -> NoReturn:
    """Raise ``AttributeError`` for a name that a public module does not have, with the nearest that it has."""
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")  # the interpreter looks for them
    folded = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    hint = f"did you mean {folded[near[0]]}?" if near else f"it has {', '.join(names)}"
    raise AttributeError(f"{module} has no {name}; {hint}", name=name)
