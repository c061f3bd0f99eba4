"""The collectives of ``horovod.tensorflow`` behind the ``Comms`` port: for scripts that train with TensorFlow.

Each operation is a function of TensorFlow's own with one operation in it. Outside of such a function Horovod cannot
name an operation: all that run at a time would have the same name, ours and the script's. An operation of TensorFlow
blocks its thread, so ``start_max`` returns a finished maximum.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import horovod.tensorflow as hvd
import tensorflow as tf
import torch
from horovod.tensorflow import mpi_ops
from torch import Tensor

from hvd_elastic_ext.worker.comms import Finished, OfHorovod, PeerLost, Pending, copy_back, pieces, reducible
from hvd_elastic_ext.worker.comms.tensorflow_waits import threads
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.process.error_report import names_lost_collective, text_of
from hvd_elastic_ext.worker.process.fence import HOROVOD_FENCE, Fence

_PREFIX: Final = "hvd_elastic_ext"
_PIECE: Final = 1 << 28
"""Bytes per operation. TensorFlow needs memory of its own for each."""
_NATIVE: Final = (torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)

_MODULES: Final = (
    "horovod.tensorflow", "horovod.tensorflow.mpi_ops", "horovod.tensorflow.elastic", "horovod.tensorflow.keras",
    "horovod.keras",
)  # fmt: skip
"""The modules that have ``init`` and ``shutdown`` under names of their own."""


class HorovodComms(OfHorovod):
    """The world that ``hvd.init()`` of ``horovod.tensorflow`` joined."""

    operations = mpi_ops

    def broadcast(self, data: Tensor, *, root: int, name: str) -> None:
        """Over Horovod, in pieces of 256 MiB; blocks until all ranks call it.

        Raises :class:`UsageError` for anything but a flat, contiguous uint8 tensor in host memory.
        """
        parts = list(pieces(data, _PIECE))
        if self.size() == 1:
            return
        for index, piece in enumerate(parts):
            got = _run(_broadcast(f"{name}.{index}", root), piece)
            if self.rank() != root:
                piece.copy_(got)

    def sum(self, data: Tensor, *, name: str) -> None:
        """Over Horovod, through host memory; blocks until all ranks call it.

        Raises :class:`UsageError` for a sparse tensor.
        """
        carried = reducible(data, _NATIVE)
        if self.size() == 1 or data.numel() == 0:
            return
        flat = carried.view(-1)
        kind = str(carried.dtype).removeprefix("torch.")
        flat.copy_(_run(_reduce(name, kind, mpi_ops.Sum), flat))
        copy_back(carried, data)

    def start_max(self, number: int, *, name: str) -> Pending:
        """Return the finished maximum, once all ranks have called this."""
        if self.size() == 1:
            return Finished(number)
        return Finished(int(_run(_reduce(name, "int64", mpi_ops.Max), torch.tensor([number]))))

    def begun_by_script(self) -> int | None:
        """The number of those outside of graphs. None once the script has one in a graph, other than a broadcast: it
        runs unseen."""
        library = mpi_ops.MPI_LIB
        return library.begun if isinstance(library, WatchedLibrary) and not library.in_graphs else None

    def lost_by(self, error: BaseException) -> bool:
        """Whether this is an error of TensorFlow that names a lost collective."""
        return names_lost_collective(error)

    def rejoin(self) -> None:
        """Shut Horovod down and initialise it again. Raises ``HorovodInternalError`` if the world does not form."""
        leave_world()
        join_world()


def _run(graph: Callable[[Any], Any], data: Tensor) -> Tensor:
    """Run a function of one operation, on the CPU. ``data`` is flat. Raises :data:`PeerLost` for TensorFlow's errors
    that mean it; the others come through."""
    try:
        with waiting(), tf.device("/CPU:0"):
            return torch.from_numpy(graph(tf.convert_to_tensor(data.numpy())).numpy())
    except tf.errors.OpError as error:
        if not names_lost_collective(error):
            raise
        raise PeerLost(text_of(error)) from error


@functools.cache
def _broadcast(name: str, root: int) -> Callable[[Any], Any]:
    """A function with one operation of this name. A name is the same in each function: its scope does not count."""
    named = _named(name)
    return _traced(lambda data: mpi_ops.broadcast(data, root, name=named, ignore_name_scope=True), "uint8")


@functools.cache
def _reduce(name: str, kind: str, operation: Any) -> Callable[[Any], Any]:
    named = _named(name)
    return _traced(lambda data: mpi_ops._allreduce(data, name=named, op=operation, ignore_name_scope=True), kind)


def _named(name: str) -> str:
    """The name in letters that TensorFlow allows, which has a scope for each ``/``; another one for each name."""
    return f"{_PREFIX}." + re.sub(r"[^A-Za-z0-9_.]", lambda found: f"-{ord(found[0]):x}-", name)


def _traced(function: Callable[[Any], Any], kind: str) -> Callable[[Any], Any]:
    """A graph of its own, also where the script runs its functions eagerly, for flat tensors of any length: another
    world has other lengths, and its ranks must not wait for new graphs."""
    with tf.device("/CPU:0"), _ours():
        spec = tf.TensorSpec([None], tf.as_dtype(kind))
        return tf.function(function, autograph=False).get_concrete_function(spec)  # type: ignore[no-any-return]


# --- what the script does

_COLLECTIVES: Final = re.compile(
    r"horovod_((grouped_)?(allreduce|allgather|reducescatter)|broadcast(_inplace(_resource)?)?|alltoall|join)"
)
"""Names of operations in which ranks wait for one another."""


class WatchedLibrary:
    """Horovod's operations of TensorFlow, which note what the script begins. Outside of a graph they block."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.begun = 0
        """Collectives outside of graphs that have begun."""
        self.in_graphs = False
        """Whether the script has made a collective of a graph that is not a broadcast, which averages nothing: Horovod
        has its own in graphs."""
        self.ours = False
        """Whether one that is made now is not the script's."""

    def __getattr__(self, name: str) -> Any:
        theirs = getattr(self._library, name)
        if _COLLECTIVES.fullmatch(name):
            theirs = untraced(self._watched(theirs, unseen="broadcast" not in name))
        setattr(self, name, theirs)  # so that the next call skips this method
        return theirs

    def _watched(self, theirs: Callable[..., Any], *, unseen: bool) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def operation(*args: Any, **kwargs: Any) -> Any:
            if not tf.executing_eagerly():
                self.in_graphs |= unseen and not self.ours
                return theirs(*args, **kwargs)
            self.begun += 1
            with waiting():
                return theirs(*args, **kwargs)

        return operation


def untraced(function: Any) -> Any:
    """Return a function that ``tf.function`` calls as it is, and does not translate."""
    return tf.autograph.experimental.do_not_convert(function)


@contextmanager
def _ours() -> Iterator[None]:
    """Context in which collectives of a graph are made that are not the script's."""
    library = mpi_ops.MPI_LIB
    if not isinstance(library, WatchedLibrary):
        yield
        return
    library.ours = True
    try:
        yield
    finally:
        library.ours = False


def waiting() -> AbstractContextManager[None]:
    """Context around a wait for other ranks. That of another thread than the main one does not hold up the script."""
    timer = standby.current().step_timer
    if timer is None or threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return timer.waiting()


# --- the world

_threads: Final[set[int]] = set()
"""Those of Horovod in the present world. Its loop is never at rest."""


def threads_of_horovod() -> set[int]:
    """Native numbers of the threads that Horovod has started for the present world."""
    return _threads


def _noting_threads(join: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(join)
    def joining(*args: Any, **options: Any) -> Any:
        before, was = threads(), is_initialised()
        try:
            return join(*args, **options)
        finally:
            if not was:
                _threads.clear()
                _threads.update(threads() - before)

    return joining


def is_initialised() -> bool:
    """Whether this process is in a world of ``horovod.tensorflow``."""
    return bool(hvd.is_initialized())


def leave_world() -> None:
    """Shut Horovod down: its threads end."""
    hvd.shutdown()


def join_world() -> None:
    """Join the world that the environment describes. Blocks until it has formed."""
    try:
        hvd.init()
    except ValueError as error:
        # Horovod raises ValueError if a world does not form; the cause is a lost peer.
        raise PeerLost(f"joining the next world failed: {error}") from error


def fence_horovod() -> Fence:
    """Make Horovod's worlds safe to leave; return the fence that knows their connections.

    Replaces the functions in the modules where users and Horovod's own loop find them. The modules for Keras may be
    loaded, too, and have the functions under their own names. A second call changes nothing.
    """
    if getattr(hvd.shutdown, "hvd_elastic_fence", None) is None:
        join, leave = HOROVOD_FENCE.tracking(_noting_threads(mpi_ops.init)), HOROVOD_FENCE.closing(mpi_ops.shutdown)
        mpi_ops.MPI_LIB = WatchedLibrary(mpi_ops.MPI_LIB)
        leave.hvd_elastic_fence = HOROVOD_FENCE  # type: ignore[attr-defined]
        for name in _MODULES:
            if (module := sys.modules.get(name)) is not None:
                module.__dict__.update(init=join, shutdown=leave)
    return HOROVOD_FENCE
