"""MPI behind the ``Comms`` port: the world of ``mpirun``. The only importer of ``mpi4py``.

Importing this module initialises MPI. The importer handles ``ImportError`` (no mpi4py) and ``RuntimeError`` (no MPI
library).
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

import numpy as np
import torch
from mpi4py import MPI
from mpi4py.run import set_abort_status
from torch import Tensor

from hvd_elastic_ext.core.messages.slot_protocol import START_AGAIN
from hvd_elastic_ext.worker.comms import NO_SECOND_WORLD, Comms, Finished, Pending, copy_back, pieces, reducible
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.stock import HorovodInternalError

_PIECE: Final = 1 << 30
"""MPI counts elements with 31 bits."""

_NATIVE: Final = (torch.int32, torch.int64, torch.float32, torch.float64)


class MPIComms(Comms):
    """The processes of ``mpirun``. Their number never changes: MPI ends all of them when one is lost."""

    def __init__(self) -> None:
        self._comm = _own_communicator()
        self._local_rank = _local_rank()  # all ranks find it out together, and later one may ask alone
        self._pending: dict[str, _PendingMax] = {}
        self._peer_lost = False

    def rank(self) -> int:
        """The rank that ``mpirun`` gave this process; it never changes."""
        return int(self._comm.Get_rank())

    def size(self) -> int:
        """Processes of the MPI world; the number never changes."""
        return int(self._comm.Get_size())

    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self._local_rank

    def broadcast(self, data: Tensor, *, root: int, name: str) -> None:
        """Over MPI, in pieces of 1 GiB; ``name`` appears in errors only, since MPI matches calls by their order.

        Raises :class:`UsageError` for anything but a flat, contiguous uint8 tensor in host memory.
        """
        parts = list(pieces(data, _PIECE))
        if self.size() == 1:
            return
        with self._lost_peers(name):
            for piece in parts:
                self._comm.Bcast(piece.numpy(), root=root)

    def sum(self, data: Tensor, *, name: str) -> None:
        """Over MPI; blocks until all ranks call it. A CUDA tensor goes through host memory.

        Raises :class:`UsageError` for a sparse tensor.
        """
        carried = reducible(data, _NATIVE)
        if self.size() == 1 or data.numel() == 0:
            return
        with self._lost_peers(name):
            for piece in torch.split(carried.view(-1), _PIECE):
                self._comm.Allreduce(MPI.IN_PLACE, piece.numpy(), op=MPI.SUM)
        copy_back(carried, data)

    def start_max(self, number: int, *, name: str) -> Pending:
        """Over MPI, with an operation that does not block."""
        if self.size() == 1:
            return Finished(number)
        earlier = self._pending.pop(name, None)
        if earlier is not None:
            earlier.wait()  # MPI may use its memory until it has ended
        with self._lost_peers(name):
            flight = self._pending[name] = _PendingMax(self, number, name)
        return flight

    def reset(self) -> None:
        """Join the next world. It is the same one, if all ranks are alive and call this.

        After a lost peer there is no next world, and all processes of the job end with exit code 1. Under
        ``hvd-elastic run`` all end in any case, because other processes form the next world.
        """
        standby.current().end_fixed_world()
        if self._peer_lost and standby.current().fixed_world:
            self._comm.Abort(START_AGAIN)
        if self._peer_lost:
            sys.stderr.write(f"{NO_SECOND_WORLD}\n")
            sys.stderr.flush()
            self._comm.Abort(1)
        for name in list(self._pending):
            self._pending.pop(name).wait()
        with self._lost_peers("reset"):
            self._comm.Barrier()
        if standby.current().fixed_world:
            raise standby.OrderedExit(0)  # with another exit code, mpirun ends the whole job

    @contextlib.contextmanager
    def _lost_peers(self, name: str) -> Iterator[None]:
        try:
            yield
        except MPI.Exception as error:
            self._peer_lost = True
            raise HorovodInternalError(f"{name}: {error}") from error


class _PendingMax:
    """A pending maximum, with the memory that MPI uses meanwhile."""

    def __init__(self, comms: MPIComms, number: int, name: str) -> None:
        self._comms = comms
        self._name = name
        self._mine = np.array([number], dtype=np.int64)
        self._result = np.empty(1, dtype=np.int64)
        self._request: Any = comms._comm.Iallreduce(self._mine, self._result, op=MPI.MAX)

    def wait(self) -> int:
        with self._comms._lost_peers(self._name):
            self._request.Wait()  # a second wait returns at once
        return int(self._result[0])


@functools.cache
def _own_communicator() -> Any:
    """Return a communicator of our own: MPI matches operations of one communicator by their order, and the user's
    operations have another order."""
    return MPI.COMM_WORLD.Dup()


@functools.cache
def _local_rank() -> int:
    neighbours = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    try:
        return int(neighbours.Get_rank())
    finally:
        neighbours.Free()


def abort_job_on_error() -> None:
    """Make an uncaught exception in this process end the whole job.

    Otherwise MPI waits for all processes at exit, while those wait for this one.
    """
    earlier = sys.excepthook
    if getattr(earlier, "hvd_elastic_aborts_job", False):
        return

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        earlier(kind, value, trace)
        set_abort_status(1)

    hook.hvd_elastic_aborts_job = True  # type: ignore[attr-defined]
    sys.excepthook = hook
