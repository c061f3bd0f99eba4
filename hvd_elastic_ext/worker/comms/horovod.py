"""The collectives of ``horovod.torch`` behind the ``Comms`` port. Without it this can be imported, but has no world."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, cast

import torch
from torch import Tensor

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.comms import Finished, OfHorovod, Pending, copy_back, pieces, reducible, torch_distributed
from hvd_elastic_ext.worker.comms.pinned_tensors import PinnedLibrary, share_cores
from hvd_elastic_ext.worker.process.fence import HOROVOD_FENCE, Fence
from hvd_elastic_ext.worker.stock import FOR_TORCH, HorovodInternalError, demand

if FOR_TORCH:
    import horovod.torch as hvd
    from horovod.torch import mpi_ops

_PREFIX: Final = "hvd_elastic_ext"

_PIECE: Final = 1 << 30
"""Bytes per operation: each one costs a negotiation, and an MPI build counts bytes with 32 bits."""

AVERAGE: Final[Any] = hvd.Average if FOR_TORCH else None

_NATIVE: Final = (torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)


_own_operations: Final = [0]
"""The number of this module's operations that have begun."""


class HorovodComms(OfHorovod):
    """The world that ``hvd.init()`` joined.

    Every operation has an explicit name, because Horovod's automatic names count calls, and a newcomer has made fewer.
    They are those of ``mpi_ops``: scripts find other ones, which record what they return.

    Raises :class:`UsageError` where there is no Horovod.
    """

    rides_along = True
    operations = mpi_ops if FOR_TORCH else None

    def __init__(self) -> None:
        demand("this process is not in a world")

    def broadcast(self, data: Tensor, *, root: int, name: str) -> None:
        """Over Horovod, in pieces of 1 GiB; blocks until all ranks call it.

        Raises :class:`UsageError` for anything but a flat, contiguous uint8 tensor in host memory.
        """
        self.start_broadcast(data, root=root, name=name)()

    def start_broadcast(self, data: Tensor, *, root: int, name: str) -> Callable[[], object]:
        """As :meth:`broadcast`. All pieces begin at once, so that none waits until the one before has ended."""
        parts = list(pieces(data, _PIECE))
        if self.size() == 1:
            return lambda: None
        handles = []
        for index, piece in enumerate(parts):
            handles.append(mpi_ops.broadcast_async_(piece, root, f"{_PREFIX}.{name}.{index}"))
            _own_operations[0] += 1

        def wait() -> None:
            for handle in handles:
                _synchronize(handle)

        return wait

    def sum(self, data: Tensor, *, name: str) -> None:
        """Over Horovod; blocks until all ranks call it. Without NCCL a CUDA tensor goes through host memory.

        Raises :class:`UsageError` for a sparse tensor.
        """
        carried = reducible(data, _NATIVE, device="cuda" if data.is_cuda and hvd.nccl_built() else "cpu")
        if self.size() == 1 or data.numel() == 0:
            return
        handle = mpi_ops.allreduce_async_(carried, op=hvd.Sum, name=f"{_PREFIX}.{name}")
        _own_operations[0] += 1
        _synchronize(handle)
        copy_back(carried, data)

    def start_max(self, number: int, *, name: str) -> Pending:
        """Over Horovod. This drops an earlier maximum of this name if its world has ended, and does not wait for it."""
        if self.size() == 1:
            return Finished(number)
        earlier = _pending.pop(name, None)
        if earlier is not None and earlier.alive:
            earlier.wait()  # Horovod refuses a name that is in use
        flight = _pending[name] = _PendingMax(number, name)
        return flight

    def rejoin(self) -> None:
        """Shut Horovod down and initialise it again. Raises ``HorovodInternalError`` if the world does not form."""
        leave_world()
        join_world()

    def begun_by_script(self) -> int | None:
        """The number from Horovod and torch.distributed together. None without the pinned library."""
        library = mpi_ops.mpi_lib
        in_torch = torch_distributed.begun_by_script() if torch_distributed.is_initialised() else 0
        if in_torch is None or not isinstance(library, PinnedLibrary) or "mpi4py.MPI" in sys.modules:
            return None
        return in_torch + library.operations - _own_operations[0]


def _synchronize(handle: int) -> None:
    """Wait for an operation that belongs to no step."""
    library = mpi_ops.mpi_lib
    with library.sleeping() if isinstance(library, PinnedLibrary) else nullcontext():
        mpi_ops.synchronize(handle)


class _PendingMax:
    """A pending maximum, bound to the world in which it began.

    Horovod numbers handles from 0 in each world, so in a later world an old handle names another operation.
    ``hvd.init`` makes a new handle map each time, so the map identifies the world.
    """

    def __init__(self, number: int, name: str) -> None:
        self._world = mpi_ops._handle_map
        self._result: int | None = None
        self._handle = mpi_ops.allreduce_async(torch.tensor([number]), op=hvd.Max, name=f"{_PREFIX}.{name}")
        _own_operations[0] += 1

    @property
    def alive(self) -> bool:
        """Whether its world is the present one."""
        return self._world is mpi_ops._handle_map and bool(hvd.is_initialized())

    def wait(self) -> int:
        if self._result is None:
            if not self.alive or self._handle not in self._world:
                raise HorovodInternalError("the world in which this maximum began is gone")
            self._result = int(mpi_ops.synchronize(self._handle).item())
        return self._result


_pending: Final[dict[str, _PendingMax]] = {}
"""The last maximum of each name. If the caller has dropped it, the next one removes it from Horovod's map."""


def is_initialised() -> bool:
    """Whether this process is in a Horovod world."""
    return FOR_TORCH and bool(hvd.is_initialized())


def leave_world() -> None:
    """Shut Horovod down: its threads end."""
    _pending.clear()
    hvd.shutdown()


def join_world() -> None:
    """Join the world that the environment describes. Blocks until it has formed.

    Raises :class:`UsageError` where there is no Horovod.
    """
    demand("no world can be joined")
    try:
        hvd.init()
    except ValueError as error:
        # Horovod raises ValueError if a world does not form; the cause is a lost peer.
        raise HorovodInternalError(f"joining the next world failed: {error}") from error


def time_waits(around_wait: Callable[[], AbstractContextManager[None]]) -> None:
    """Enter this context around each wait for other ranks from now on. Without effect where there is no Horovod."""
    if FOR_TORCH and isinstance(mpi_ops.mpi_lib, PinnedLibrary):
        mpi_ops.mpi_lib.around_wait = around_wait


def wrapped(optimizer: Any, named_parameters: Any, **options: Any) -> Any:
    """Return ``hvd.DistributedOptimizer``."""
    return hvd.DistributedOptimizer(optimizer, named_parameters, **options)


def is_wrapped(optimizer: object) -> bool:
    """Whether ``elastic.wrap`` or ``hvd.DistributedOptimizer`` has made this optimizer, or this class of one."""
    return hasattr(optimizer, "set_backward_passes_per_step")


def _refuse_wrapped(kind: Any) -> None:
    """Make a class of Horovod's refuse to wrap an optimizer that is wrapped already.

    ``hvd.DistributedOptimizer`` makes a subclass of the optimizer's class, and gives it the methods of ``kind``. Its
    ``__init__`` calls the ``__init__`` of the optimizer's class. If that is its own, it fails over the arguments. The
    check is in the class, because scripts may have imported the function before.
    """
    initialise = kind.__init__

    @functools.wraps(initialise)
    def checked(self: Any, *args: Any, **options: Any) -> None:
        if is_wrapped(type(self).__bases__[0]):
            raise UsageError("hvd.DistributedOptimizer: this optimizer is wrapped already; wrap it once")
        initialise(self, *args, **options)

    kind.__init__ = checked


def fence_horovod() -> Fence:
    """Make Horovod's worlds safe to leave; return the fence that knows their connections.

    Also makes ``hvd.DistributedOptimizer`` refuse an optimizer that is wrapped already.

    Replaces the functions in the modules where users and Horovod's own loop find them, and pins tensors while Horovod
    uses them (see ``pinned_tensors.py``). A second call returns the same fence. Without Horovod nothing is changed.
    """
    if not FOR_TORCH:
        return HOROVOD_FENCE
    earlier: Fence | None = getattr(hvd.init, "hvd_elastic_fence", None)
    if earlier is not None:
        return earlier
    fence, pins = HOROVOD_FENCE, PinnedLibrary(mpi_ops.mpi_lib)
    join = fence.tracking(hvd.init)

    def choose_wait() -> None:
        pins.asleep = bool(hvd.is_initialized()) and share_cores(hvd.local_size())

    choose_wait()  # a script may import this after it has joined its world

    @functools.wraps(join)
    def watched(*args: Any, **options: Any) -> Any:
        if not hvd.is_initialized():
            pins.forget()
        joined = join(*args, **options)
        choose_wait()
        return joined

    leave = hvd.shutdown

    @functools.wraps(leave)
    def leaving() -> None:
        with pins.around_wait():  # it waits for Horovod's thread, which may wait for other ranks
            leave()

    cast(Any, watched).hvd_elastic_fence = fence
    for kind in (hvd.optimizer._DistributedOptimizer, hvd.optimizer._DistributedAdasumOptimizer):
        _refuse_wrapped(kind)
    mpi_ops.mpi_lib = pins
    hvd.init = hvd.elastic.init = watched
    hvd.shutdown = hvd.elastic.shutdown = fence.closing(leaving)
    return fence
