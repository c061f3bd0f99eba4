"""The collectives of ``horovod.tensorflow`` behind the ``Comms`` port: for scripts that train with TensorFlow.

Each operation is a function of TensorFlow's own with one operation in it. Outside of such a function Horovod cannot
name an operation: all that run at a time would have the same name, ours and the script's. Horovod's list of operations
is TensorFlow's, so an operation here blocks its thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import horovod.tensorflow as hvd
import tensorflow as tf
import torch
from horovod.tensorflow import mpi_ops
from torch import Tensor

from hvd_elastic_ext.worker.comms import Comms, Finished, PeerLost, Pending, copy_back, pieces, reducible
from hvd_elastic_ext.worker.process.error_report import names_lost_collective, text_of
from hvd_elastic_ext.worker.process.fence import HOROVOD_FENCE, Fence

_PREFIX: Final = "hvd_elastic_ext"
_PIECE: Final = 1 << 28
"""Bytes per operation. TensorFlow needs memory of its own for each."""
_NATIVE: Final = (torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)


class HorovodComms(Comms):
    """The world that ``hvd.init()`` of ``horovod.tensorflow`` joined."""

    def rank(self) -> int:
        """This process's rank in Horovod's present world, not a planned one."""
        return int(mpi_ops.rank())

    def size(self) -> int:
        """Processes in Horovod's present world."""
        return int(mpi_ops.size())

    def local_rank(self) -> int:
        """This process's number on its machine."""
        return int(mpi_ops.local_rank())

    def broadcast(self, data: Tensor, *, root: int, name: str) -> None:
        """Over Horovod, in pieces of 256 MiB; blocks until all ranks call it.

        Raises :class:`UsageError` for anything but a flat, contiguous uint8 tensor in host memory.
        """
        parts = list(pieces(data, _PIECE))
        if self.size() == 1:
            return
        for index, piece in enumerate(parts):
            with _raising_lost():
                got = _broadcast(f"{_PREFIX}.{name}.{index}", root)(tf.convert_to_tensor(piece.numpy()))
            if self.rank() != root:
                piece.copy_(torch.from_numpy(got.numpy()))

    def sum(self, data: Tensor, *, name: str) -> None:
        """Over Horovod, through host memory; blocks until all ranks call it.

        Raises :class:`UsageError` for a sparse tensor.
        """
        carried = reducible(data, _NATIVE)
        if self.size() == 1 or data.numel() == 0:
            return
        given = tf.convert_to_tensor(carried.numpy())
        with _raising_lost():
            got = _reduce(f"{_PREFIX}.{name}", given.dtype, given.shape, mpi_ops.Sum)(given)
        carried.copy_(torch.from_numpy(got.numpy()))
        copy_back(carried, data)

    def start_max(self, number: int, *, name: str) -> Pending:
        """Return a maximum that begins when it is waited for: an operation of TensorFlow blocks."""
        return Finished(number) if self.size() == 1 else _Max(number, name)

    def lost_by(self, error: BaseException) -> bool:
        """Whether this is an error of TensorFlow that names a lost collective."""
        return names_lost_collective(error)

    def reset(self) -> None:
        """Shut Horovod down and initialise it again.

        Raises ``HorovodInternalError`` if the next world does not form.
        """
        hvd.shutdown()
        join_world()


@dataclass(slots=True)
class _Max:
    """A maximum that has not begun. Dropped, it never begins, on no rank: all drop it, or lose the world."""

    number: int
    name: str
    result: int | None = None

    def wait(self) -> int:
        if self.result is None:
            given = tf.convert_to_tensor([self.number], dtype=tf.int64)
            with _raising_lost():
                got = _reduce(f"{_PREFIX}.{self.name}", given.dtype, given.shape, mpi_ops.Max)(given)
            self.result = int(got[0])
        return self.result


@functools.cache
def _broadcast(name: str, root: int) -> Callable[[Any], Any]:
    """A function with one operation of this name. A name is the same in each function: its scope does not count."""

    def broadcast(data: Any) -> Any:
        return mpi_ops.broadcast(data, root, name=name, ignore_name_scope=True)

    return _traced(broadcast, tf.TensorSpec([None], tf.uint8))


@functools.cache
def _reduce(name: str, kind: Any, shape: Any, operation: Any) -> Callable[[Any], Any]:
    def reduce(data: Any) -> Any:
        return mpi_ops._allreduce(data, name=name, op=operation, ignore_name_scope=True)

    return _traced(reduce, tf.TensorSpec(shape, kind))


def _traced(function: Callable[[Any], Any], spec: Any) -> Callable[[Any], Any]:
    """A graph of its own, also where the script runs its functions eagerly; on the CPU."""
    with tf.device("/CPU:0"):
        graph = tf.function(function, autograph=False).get_concrete_function(spec)

    def run(data: Any) -> Any:
        with tf.device("/CPU:0"):
            return graph(data)

    return run


@contextmanager
def _raising_lost() -> Iterator[None]:
    """Raise :data:`PeerLost` for the errors of TensorFlow that mean it."""
    try:
        yield
    except tf.errors.OpError as error:
        if not names_lost_collective(error):
            raise
        raise PeerLost(text_of(error)) from error


def is_initialised() -> bool:
    """Whether this process is in a world of ``horovod.tensorflow``."""
    return bool(hvd.is_initialized())


def join_world() -> None:
    """Join the world that the environment describes. Blocks until it has formed."""
    try:
        hvd.init()
    except ValueError as error:
        # Horovod raises ValueError if a world does not form; the cause is a lost peer.
        raise PeerLost(f"joining the next world failed: {error}") from error


def fence_horovod() -> Fence:
    """Make Horovod's worlds safe to leave; return the fence that knows their connections.

    Replaces the functions in the modules where users and Horovod's own loop find them. A second call changes nothing.
    """
    if getattr(hvd.shutdown, "hvd_elastic_fence", None) is None:
        join, leave = HOROVOD_FENCE.tracking(mpi_ops.init), HOROVOD_FENCE.closing(mpi_ops.shutdown)
        leave.hvd_elastic_fence = HOROVOD_FENCE  # type: ignore[attr-defined]
        for module in (mpi_ops, hvd, hvd.elastic):
            module.init, module.shutdown = join, leave
    return HOROVOD_FENCE
