"""The public face for PyTorch users: ``import hvd_elastic_ext.torch as elastic``.

    state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0)

    @elastic.run
    def train(state): ...

Both work with Horovod's own counterparts too: this State under
``hvd.elastic.run``, this ``run`` with a plain Horovod State, either under
``horovodrun`` or ``hvd-elastic run``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
from horovod.common.elastic import notification_manager
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch.elastic import state as _stock

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.worker import torch_parts
from hvd_elastic_ext.worker.comms.horovod import fence_horovod, horovod_comms
from hvd_elastic_ext.worker.loop import elastic as _elastic
from hvd_elastic_ext.worker.report import reporter_for
from hvd_elastic_ext.worker.sampler import ElasticSampler
from hvd_elastic_ext.worker.settings import WorkerSettings
from hvd_elastic_ext.worker.state import Keeper

__all__ = ["ElasticSampler", "TorchState", "run"]

_FENCE = fence_horovod()
"""Set up on import, which comes before ``hvd.init()``: worlds joined earlier are not known to it."""

_STOCK_HANDLERS = (_stock.ModelStateHandler, _stock.OptimizerStateHandler, _stock.SamplerStateHandler)


class TorchState(hvd.elastic.TorchState):  # type: ignore[misc]
    """Horovod's ``TorchState`` that keeps its word: what was committed or synced is exactly what comes back.

    ``model``, ``optimizer`` and every keyword become attributes. Modules,
    optimizers and anything with ``state_dict``/``load_state_dict`` are kept by
    their state; other values are copied deeply. Assign to the attributes as
    training goes (``state.batch += 1``).

    Raises :class:`hvd_elastic_ext.core.errors.Permanent` for a value that cannot be copied.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        given = {"model": model, "optimizer": optimizer, **kwargs}
        found = {name: _part_for(value) for name, value in given.items()}
        parts = {name: part for name, part in found.items() if part is not None}
        # The stock class sees the plain values only: it would hold a second copy of everything else.
        super().__init__(**{name: value for name, value in given.items() if name not in parts})
        self._saved_state: dict[str, Any]
        for name, part in parts.items():
            self._saved_state.pop(name, None)
            setattr(self, name, part.value)
        clock = SystemClock()
        self._keeper = Keeper(
            self,
            parts,
            names=tuple(name for name in given if name not in parts),
            part_for=_part_for,
            comms=horovod_comms(),
            reporter=reporter_for(WorkerSettings.from_environ(os.environ), clock),
        )

    def save(self) -> None:
        """Commit everything to memory, without looking for host updates."""
        self._keeper.save()
        self._saved_state = dict(self._keeper.committed_values)

    def restore(self) -> None:
        """Return everything to the last commit; doing it twice gives the same bytes.

        Horovod's loop and ours call this when a peer was lost. The world is of no
        use any more then, so this process's part of it is closed first, for
        peers that have not noticed yet. Called by yourself, it leaves the world alone.
        """
        if isinstance(sys.exc_info()[1], HorovodInternalError):
            _FENCE.cut()
        self._keeper.restore()

    def sync(self) -> None:
        """Make everything rank 0's live state on every rank, and commit that."""
        self._keeper.sync()
        self.save()
        self._keeper.synced()

    def check_host_updates(self) -> None:
        """Raise Horovod's ``HostsUpdatedInterrupt`` on all ranks if any of them has heard of a change.

        Every rank must call it at the same point, best between two steps. The
        interrupt never asks to skip the sync.
        """
        if self._keeper.hosts_changed():
            raise HostsUpdatedInterrupt(skip_sync=False)

    def on_hosts_updated(self, timestamp: Any, update_res: Any) -> None:
        """Horovod's notification thread calls this; times are not compared, so none is ever too old."""
        self._keeper.inbox.put()

    def on_reset(self) -> None:
        """A new world has formed: run the reset callbacks. Notices that came meanwhile are kept."""
        self._keeper.inbox.entered()
        super().on_reset()

    def fingerprint(self) -> str:
        """Hash all shared state: after a sync it is the same on every rank."""
        return self._keeper.fingerprint()

    def __setattr__(self, name: str, value: Any) -> None:
        keeper = self.__dict__.get("_keeper")
        if keeper is not None:
            keeper.assigning(name, value)
        super().__setattr__(name, value)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the training function; its first argument is the State.

    Before each start of ``func`` the State is synced. When a peer is lost the
    State is rolled back first; when hosts were added or removed it is not.
    A failure while the next world forms leads to another attempt, five at
    most, with growing pauses; then its error is raised.
    """
    return _elastic(func, reset=horovod_comms().reset, notifications=notification_manager, clock=SystemClock())


def _part_for(value: object) -> torch_parts.Part | None:
    """A handler the user registered with Horovod goes first; Horovod's own three are replaced by ours."""
    for kind, handler in _stock.get_handler_registry():
        if handler not in _STOCK_HANDLERS and isinstance(value, kind):
            return torch_parts.HandlerPart(handler(value))
    return torch_parts.part_for(value)
