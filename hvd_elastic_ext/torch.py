"""The public face for PyTorch users: ``import hvd_elastic_ext.torch as elastic``.

    state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    @elastic.run
    def train(state): ...

Both work with Horovod's own counterparts too: this State under
``hvd.elastic.run``, this ``run`` with a plain Horovod State, either under
``horovodrun`` or ``hvd-elastic run``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import horovod.torch as hvd
from horovod.common.elastic import notification_manager

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import choose, current_world
from hvd_elastic_ext.worker.comms.choose import local_rank, rank, size
from hvd_elastic_ext.worker.comms.horovod import fence_horovod, horovod_comms
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.stream import ElasticStream
from hvd_elastic_ext.worker.optim.averaging import wrap
from hvd_elastic_ext.worker.optim.learning_rate import ScaledLearningRate
from hvd_elastic_ext.worker.parts.torch_parts import ParameterNames
from hvd_elastic_ext.worker.patches import horovod_hook
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.state.importing import Names, Source
from hvd_elastic_ext.worker.state.loop import elastic as _elastic
from hvd_elastic_ext.worker.state.mixin import Choices, ElasticMixin, Face, keeper_for, part_for
from hvd_elastic_ext.worker.state.user_files import Checkpoint, chosen

__all__ = [
    "Checkpoint",
    "ElasticMixin",
    "ElasticSampler",
    "ElasticStream",
    "GlobalBatches",
    "ScaledLearningRate",
    "TorchState",
    "check_alive",
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

horovod_hook.install()
_WAY = standby.current()
_NONE = object()
_FENCE = fence_horovod()
"""Set up on import, which comes before ``hvd.init()``: worlds joined earlier are not known to it."""


class TorchState(Face, hvd.elastic.TorchState):  # type: ignore[misc]
    """Horovod's ``TorchState`` that keeps its word: what was committed or synced is exactly what comes back.

    ``model``, ``optimizer`` and every keyword become attributes. Modules,
    optimizers and anything with ``state_dict``/``load_state_dict`` are kept by
    their state; other values are copied deeply. Assign to the attributes as
    training goes (``state.batch += 1``).

    ``rng``: also commit and roll back this rank's random generators (Python,
    NumPy, torch, CUDA); they are never synced. ``comms``: the library whose
    world this is, "auto", "horovod", "torch" or "mpi". (Anything but a bool, or a
    string, of these names is a value like others.)

    ``checkpoint``: an :class:`elastic.Checkpoint <Checkpoint>`: checkpoints of the job are what functions of yours
    write then. (Anything else of this name is a value like others.)

    Raises :class:`hvd_elastic_ext.core.errors.Permanent` for a value that cannot be committed.
    """

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        rng: Any = True,
        comms: Any = "auto",
        checkpoint: Any = _NONE,
        **kwargs: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        # Scripts written for Horovod's State may have values of these names.
        if not isinstance(rng, bool):
            given["rng"], rng = rng, True
        if not isinstance(comms, str):
            given["comms"], comms = comms, "auto"
        own_files = None if checkpoint is _NONE else chosen(checkpoint)
        if own_files is None and checkpoint is not _NONE:
            given["checkpoint"] = checkpoint
        names = ParameterNames()
        found = {name: part_for(value, names) for name, value in given.items()}
        parts = {name: part for name, part in found.items() if part is not None}
        values = {name: value for name, value in given.items() if name not in parts}
        # The stock class sees the plain values only: it would hold a second copy of everything else.
        super().__init__(**values)
        for name in ("model", "optimizer"):
            if name in parts:
                self._saved_state.pop(name, None)
        for name, part in parts.items():
            setattr(self, name, part.value)
        choices = Choices(rng=rng, comms=comms, checkpoint=own_files)
        self._keeper = keeper_for(self, parts, values=tuple(values), names=names, choices=choices)

    def save(self) -> None:
        """Commit everything to memory, without looking for host updates."""
        super().save()
        self._saved_state = self._keeper.values()


def init(comms: str = "auto") -> None:
    """Join the world of whichever launcher started this process: Horovod's, torchrun's or ``mpirun``'s.

    Under Horovod it is ``hvd.init()``, which does as well. ``comms``: "auto", "horovod", "torch" or "mpi".

    Raises :class:`hvd_elastic_ext.core.errors.UsageError` for a library that cannot be had here, and
    :class:`~hvd_elastic_ext.core.errors.Permanent` for a world of one where there should be more.
    """
    choose.init(comms)
    current_world.use(choose.world())


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the training function; its first argument is the State.

    Before each start of ``func`` the State is synced. When a peer is lost the
    State is rolled back first; when hosts were added or removed it is not.
    A failure while the next world forms leads to another attempt, five at
    most, with growing pauses; then its error is raised.
    """
    return _elastic(
        func,
        reset=_next_world,
        notifications=notification_manager,
        clock=SystemClock(),
        whole=_whole,
        synced=_WAY.synced,
    )


def check_alive() -> bool:
    """False once this process has been told to leave. Cheap enough for every batch.

    It will not be in the next world then; or its host is about to go, or the whole job, as too few would be left.
    ``commit`` and ``check_host_updates`` end the training function then; nothing has to be done about it.
    """
    return _WAY.alive()


def heartbeat() -> None:
    """Say that work goes on, in code that is long without a step, a commit or a check (evaluation, compilation)."""
    _WAY.link.status.progress += 1


def on_removed(callback: Callable[[], object]) -> Callable[[], object]:
    """Call ``callback()`` when this process has been told to leave and its world has ended; it exits with 0 then.

    What was changed since the last commit is part of a new one by then. May be
    used as a decorator. Callbacks run in the order in which they were given; what one raises is logged.
    """
    _WAY.on_removed(callback)
    return callback


def load_checkpoint(state: Any, source: Source, names: Names = None) -> bool:
    """Begin with a checkpoint from before: what ``torch.save`` wrote, or ``hvd-elastic checkpoints export``.

        elastic.load_checkpoint(state, "old.pt", names={"model": "state_dict", "epoch": "epoch"})
        train(state)

    ``source``: the file's path, or a dict as it would be in it. The file is read as plain values and tensors;
    nothing that it names is run. ``names``: what is taken, by its name in the State, and its name in the file (None:
    all of the file is that one); a list of names where both are alike. Without it, State and file must have the same
    names. ``module.`` before all names of a model goes. What is not taken stays as it is.

    One rank that has the file is enough: the others get it in the first sync, and an error if nobody has it. Where the
    job goes on from a checkpoint of its own, or from a commit that has outlived its process, that is newer: nothing is
    loaded then, and that is said. True if it was loaded here.

    Raises :class:`hvd_elastic_ext.core.errors.Permanent`, one line, for a file that is not of this State, and
    :class:`hvd_elastic_ext.core.errors.UsageError` once training has begun, or for a State that is not ours.
    """
    if not isinstance(state, Face):
        raise UsageError(f"{type(state).__name__} takes no checkpoint; use elastic.TorchState, or elastic.ElasticMixin")
    return state._keeper.load(source, names)


@contextmanager
def _whole(state: Any) -> Iterator[None]:
    with _WAY.training():
        horovod_hook.enter_training(state, _next_world)
        yield
        horovod_hook.leave_training(state)


def _next_world() -> None:
    (current_world.comms() or horovod_comms()).reset()
