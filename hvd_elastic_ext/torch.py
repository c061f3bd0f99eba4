"""The public interface for PyTorch users: ``import hvd_elastic_ext.torch as elastic``.

    state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    @elastic.run
    def train(state): ...

Each also works with Horovod's counterpart of the other: this State under ``hvd.elastic.run``, and this ``run`` with a
plain Horovod State, under ``horovodrun`` or ``hvd-elastic run``. Without Horovod, both work under ``torchrun`` and
``mpirun``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from hvd_elastic_ext.core.errors import DataError, ElasticError, StateError, UsageError
from hvd_elastic_ext.worker import stock
from hvd_elastic_ext.worker.comms.current_world import local_rank, rank, size, with_horovod
from hvd_elastic_ext.worker.data.global_batches import GlobalBatches
from hvd_elastic_ext.worker.data.sampler import ElasticSampler
from hvd_elastic_ext.worker.data.stream import ElasticStream
from hvd_elastic_ext.worker.optim.averaging import wrap
from hvd_elastic_ext.worker.optim.ddp import ddp
from hvd_elastic_ext.worker.optim.learning_rate import ScaledLearningRate
from hvd_elastic_ext.worker.optim.local_sgd import DiLoCo, LocalSGD
from hvd_elastic_ext.worker.patches import horovod_hook
from hvd_elastic_ext.worker.state.arguments import check_names
from hvd_elastic_ext.worker.state.mixin import NOT_GIVEN, ElasticMixin, KeywordState
from hvd_elastic_ext.worker.state.public import (
    check_alive,
    heartbeat,
    init,
    load_checkpoint,
    no_such_name,
    on_removed,
    run,
)
from hvd_elastic_ext.worker.state.user_files import Checkpoint

__all__ = [
    "Checkpoint",
    "DataError",
    "DiLoCo",
    "ElasticError",
    "ElasticMixin",
    "ElasticSampler",
    "ElasticStream",
    "GlobalBatches",
    "LocalSGD",
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

horovod_hook.install()
_FENCE = with_horovod.fence_horovod()
"""The fence, set up at the import and so before ``hvd.init()``: it does not know earlier worlds."""


class TorchState(KeywordState, stock.TorchState):  # type: ignore[misc]
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
        checkpoint: Any = NOT_GIVEN,
        **kwargs: Any,
    ) -> None:
        check_names(type(self), unnamed)
        given = {"model": model, "optimizer": optimizer, **kwargs}
        self._keep(given, rng=rng, comms=comms, checkpoint=checkpoint, begin=super().__init__)


if not TYPE_CHECKING:  # otherwise type checkers accept every name

    def __getattr__(name: str) -> Any:
        no_such_name(__name__, __all__, name)


horovod_hook.complete()
