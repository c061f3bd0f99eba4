"""The public interface for PyTorch users: ``import hvd_elastic_ext.torch as elastic``.

    state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    @elastic.run
    def train(state): ...

Each also works with Horovod's counterpart of the other: this State under ``hvd.elastic.run``, and this ``run`` with a
plain Horovod State, under ``horovodrun`` or ``hvd-elastic run``. Without Horovod, both work under ``torchrun`` and
``mpirun``.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, overload

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import DataError, ElasticError, StateError, UsageError
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.comms import current_world
from hvd_elastic_ext.worker.comms.current_world import local_rank, rank, size
from hvd_elastic_ext.worker.comms.horovod import HorovodComms, fence_horovod
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.stream import ElasticStream
from hvd_elastic_ext.worker.optim.averaging import wrap
from hvd_elastic_ext.worker.optim.ddp import ddp
from hvd_elastic_ext.worker.optim.learning_rate import ScaledLearningRate
from hvd_elastic_ext.worker.parts.choose import part_for
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames
from hvd_elastic_ext.worker.patches import horovod_hook
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.state.arguments import check_names, check_options, check_values, not_kept, unknown
from hvd_elastic_ext.worker.state.importing import Names, Source
from hvd_elastic_ext.worker.state.loop import elastic as _elastic
from hvd_elastic_ext.worker.state.mixin import ElasticMixin, StateMethods, keeper_for
from hvd_elastic_ext.worker.state.user_files import Checkpoint, chosen

__all__ = [
    "Checkpoint",
    "DataError",
    "ElasticError",
    "ElasticMixin",
    "ElasticSampler",
    "ElasticStream",
    "GlobalBatches",
    "ScaledLearningRate",
    "StateError",
    "TorchState",
    "UsageError",
    "check_alive",
    "ddp",
    "heartbeat",
    "init",
    "load_checkpoint",
    "local_rank",
    "on_removed",
    "rank",
    "run",
    "size",
    "wrap",
]

log = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")

horovod_hook.install()
_PROCESS = standby.current()
_NONE = object()
_FENCE = fence_horovod()
"""The fence, set up at the import and so before ``hvd.init()``: it does not know earlier worlds."""


class TorchState(StateMethods, stock.TorchState):  # type: ignore[misc]
    """Horovod's ``TorchState`` with exact commits: a roll-back restores exactly the state that was committed or synced.

    ``model``, ``optimizer`` and every keyword become attributes. Anything with ``state_dict``/``load_state_dict`` is
    kept by its state; others are kept as deep copies. Assign to the attributes during training (``state.batch += 1``).

    ``rng``: whether to commit and roll back this rank's random generators (Python, NumPy, torch, CUDA), too; they are
    never synced. ``comms``: the library of the world, such as "torch", or "auto" (docs/comms.md). (A value of another
    type under these names is a plain value.)

    ``checkpoint``: an :class:`elastic.Checkpoint <Checkpoint>`: your functions write the job's checkpoints. (Anything
    else under this name is a plain value.)

    Raises :class:`StateError`, one line, for a value that cannot be committed, and for a mistake in the arguments.
    """

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *unnamed: NoReturn,
        rng: Any = True,
        comms: Any = "auto",
        checkpoint: Any = _NONE,
        **kwargs: Any,
    ) -> None:
        check_names(type(self), unnamed)
        given = {"model": model, "optimizer": optimizer, **kwargs}
        # Scripts for Horovod's State may have values of these names.
        if not isinstance(rng, bool):
            given["rng"], rng = rng, True
        if not isinstance(comms, str):
            given["comms"], comms = comms, "auto"
        functions = None if checkpoint is _NONE else chosen(checkpoint)
        if functions is None and checkpoint is not _NONE:
            given["checkpoint"] = checkpoint
        check_values(type(self), given)
        if os.environ.get(horovod_hook.ADOPT) != "1":
            check_options(type(self), given)
        names = ParameterNames()
        parts_of = {name: part_for(value, names) for name, value in given.items()}
        parts = {name: part for name, part in parts_of.items() if part is not None}
        values = {name: value for name, value in given.items() if name not in parts}
        # The stock class gets only the plain values: it would copy everything else again.
        super().__init__(**values)
        for name in ("model", "optimizer"):
            if name in parts:
                self._saved_state.pop(name, None)
        for name, part in parts.items():
            setattr(self, name, part.value)
        self._keeper = keeper_for(
            self, parts, values=tuple(values), names=names, rng=rng, comms=comms, checkpoint=functions
        )

    def __getattr__(self, name: str) -> Any:
        keeper = self.__dict__.get("_keeper")
        raise unknown(self, name, () if keeper is None else keeper.names)

    def __setattr__(self, name: str, value: Any) -> None:
        keeper = self.__dict__.get("_keeper")
        new = keeper is not None and name not in self.__dict__ and not name.startswith("_")
        super().__setattr__(name, value)
        if keeper is not None and new and name not in keeper.names and not hasattr(type(self), name):
            log.warning("%s", not_kept(name, keeper.names))

    def save(self) -> None:
        """Commit everything to memory, without a check for host updates."""
        super().save()
        self._saved_state = self._keeper.values()


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
    return _elastic(
        func,
        reset=_next_world,
        notifications=stock.notification_manager,
        clock=SystemClock(),
        whole=partial(horovod_hook.in_training, rejoin=_next_world),
        synced=_PROCESS.synced,
        lost_by=_lost_by,
    )


def check_alive() -> bool:
    """Return False as soon as this process must leave. Cheap enough for every batch.

    The process is then not part of the next world, or its host or the whole job is about to end. ``commit`` and
    ``check_host_updates`` end the training function in time, so the script need not act.
    """
    return _PROCESS.alive()


def heartbeat() -> None:
    """Report progress. Call it in code that runs long without a step, a commit or a check (evaluation, compilation)."""
    _PROCESS.link.status.progress += 1


def on_removed(callback: Callable[[], object]) -> Callable[[], object]:
    """Call ``callback()`` when this process must leave and its world has ended; it then exits with 0.

    By then, a new commit contains the changes since the last one. Usable as a decorator. Callbacks run in order; their
    exceptions are logged.
    """
    _PROCESS.on_removed(callback)
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
    comms = current_world.comms()
    return comms is not None and comms.lost_by(error)


def _next_world() -> None:
    (current_world.comms() or HorovodComms()).reset()


if not TYPE_CHECKING:  # otherwise type checkers accept every name

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")  # the interpreter looks for them
        folded = {known.lower(): known for known in __all__}
        near = difflib.get_close_matches(name.lower(), folded, n=1)
        hint = f"did you mean {folded[near[0]]}?" if near else f"it has {', '.join(__all__)}"
        raise AttributeError(f"{__name__} has no {name}; {hint}", name=name)


horovod_hook.complete()
