"""Collective operations of one world, with one of several libraries.

Belongs here: the ``Comms`` port, a module for each library that implements it, and which of them carries the present
world (``current_world``).

Never here: knowledge of the data; unpickling of anything that a peer sends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import torch
from torch import Tensor

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.worker.stock import HorovodInternalError

PeerLost: Final = HorovodInternalError
"""The error of a lost peer with every library. It is Horovod's own error, which users' ``except`` clauses name."""
NO_SECOND_WORLD: Final = "hvd-elastic: a peer was lost; an MPI world cannot form again, so the job ends"


class Pending(Protocol):
    """A pending result. The caller may drop it at any time, also across a reset."""

    def wait(self) -> int:
        """Return the result; a second call returns it again.

        Raises ``HorovodInternalError`` if a peer was lost, or if the world in which this began has ended.
        """


class Comms(Protocol):
    """The collectives that a State needs.

    Every rank calls them in the same order with the same names. A world of one sends nothing. If a peer is lost, they
    raise :data:`PeerLost`; other errors are raised unchanged. An implementation inherits :meth:`max`.
    """

    rides_along: ClassVar[bool] = False
    """Whether a small operation costs next to nothing, because it goes with those of the script."""

    def rank(self) -> int:
        """This process's number in the world, from 0."""

    def size(self) -> int:
        """Processes in the world."""

    def local_rank(self) -> int:
        """This process's number on its machine, from 0."""

    def broadcast(self, data: Tensor, *, root: int, name: str) -> None:
        """Overwrite every rank's ``data`` with that of rank ``root``, in place.

        ``data`` is a flat, contiguous uint8 tensor in host memory (mapped memory too), of the same length on all ranks;
        several GB are fine.
        """

    def start_broadcast(self, data: Tensor, *, root: int, name: str) -> Callable[[], object]:
        """Begin :meth:`broadcast`, and return a function that waits for it: another operation may begin meanwhile.

        A library whose operations block waits here.
        """
        self.broadcast(data, root=root, name=name)
        return lambda: None

    def sum(self, data: Tensor, *, name: str) -> None:
        """Overwrite ``data`` with the sum over all ranks, in place; any numeric type, the same shape on all ranks."""

    def max(self, number: int, *, name: str) -> int:
        """Return the largest ``number`` of all ranks; 64 bits, signed."""
        return self.start_max(number, name=name).wait()

    def start_max(self, number: int, *, name: str) -> Pending:
        """Begin :meth:`max` and return at once.

        An earlier one of this name may still be pending. If the engine cannot have two, this waits for the earlier one.
        A library whose operations block returns a :class:`Finished` one, when all ranks have called this.
        """

    def begun_by_script(self) -> int | None:
        """How many collectives the script has begun in this process, without those of this object. It only grows.

        None if it is unknown: for example, a script's calls of ``mpi4py`` are not counted.
        """
        return None

    def lost_by(self, error: BaseException) -> bool:
        """Whether an error that the script raised, and that is not :data:`PeerLost`, only says that a peer was lost."""
        return False

    def reset(self) -> None:
        """Leave the present world and join the next one. Blocks until it has formed."""


# --- what all libraries have in common


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished result, in place of a pending one."""

    number: int

    def wait(self) -> int:
        """Return the number at once."""
        return self.number


def pieces(data: Tensor, longest: int) -> Iterator[Tensor]:
    """Yield views of ``data`` of at most ``longest`` bytes.

    Raises :class:`UsageError` for anything but a flat, contiguous uint8 tensor in host memory.
    """
    if data.dtype != torch.uint8 or data.dim() != 1 or data.device.type != "cpu" or not data.is_contiguous():
        shape = "×".join(map(str, data.shape))
        raise UsageError(
            f"broadcast: a {data.dtype} tensor of shape {shape} on {data.device} cannot be sent; "
            "give a flat, contiguous uint8 tensor on the CPU"
        )
    for start in range(0, data.numel(), longest):
        yield data[start : start + longest]


def reducible(data: Tensor, native: Collection[torch.dtype], *, device: str = "cpu") -> Tensor:
    """Return the tensor to sum: ``data`` itself, or a copy on ``device`` in a type with at least the same range.

    Raises :class:`UsageError` for a sparse tensor.
    """
    if data.layout != torch.strided:
        raise UsageError(f"sum: a tensor of layout {data.layout} cannot be added up; give it as .to_dense()")
    detached = data.detach()
    if detached.is_complex():
        detached = torch.view_as_real(detached.resolve_conj())
    wider = torch.float32 if detached.dtype.is_floating_point else torch.int64
    kind = detached.dtype if detached.dtype in native else wider
    where = detached.device if detached.device.type == device else torch.device(device)
    return detached.to(where, kind).contiguous()


def copy_back(carried: Tensor, data: Tensor) -> None:
    """Copy the result back, unless it is ``data`` itself."""
    with torch.no_grad():
        if data.is_complex():
            carried = torch.view_as_complex(carried)
        if carried.data_ptr() != data.data_ptr() or carried.dtype != data.dtype:
            data.copy_(carried)


# --- without any library


class AloneComms(Comms):
    """A world of one rank."""

    def rank(self) -> int:
        """Always 0."""
        return 0

    def size(self) -> int:
        """Always 1."""
        return 1

    def local_rank(self) -> int:
        """Always 0."""
        return 0

    def broadcast(self, data: Tensor, *, root: int, name: str) -> None:
        """Send nothing. Raises :class:`UsageError` for a tensor that no library could send."""
        next(pieces(data, max(1, data.numel())), None)  # raises UsageError

    def sum(self, data: Tensor, *, name: str) -> None:
        """Leave ``data`` as it is. Raises :class:`UsageError` for a sparse tensor."""
        reducible(data, (data.dtype,))

    def start_max(self, number: int, *, name: str) -> Pending:
        """Return ``number`` as a finished result."""
        return Finished(number)

    def reset(self) -> None:
        """The next world is the same one."""


class OfHorovod(Comms):
    """The place in Horovod's present world, not a planned one, whatever its framework."""

    operations: ClassVar[Any]
    """Horovod's module ``mpi_ops`` for that: ``hvd.rank()`` may return the planned rank."""

    def rank(self) -> int:
        """This process's rank in Horovod's present world."""
        return int(self.operations.rank())

    def size(self) -> int:
        """Processes in Horovod's present world."""
        return int(self.operations.size())

    def local_rank(self) -> int:
        """This process's number on its machine."""
        return int(self.operations.local_rank())

    def reset(self) -> None:
        """Shut Horovod down and initialise it again; the ``wait`` of a pending maximum raises from then on.

        Raises ``HorovodInternalError`` if the next world does not form. In a world of MPI the process exits with code 1
        and one line: MPI ends with its first world, and aborts a process that uses it again.
        """
        if self.operations.mpi_enabled():
            raise SystemExit(NO_SECOND_WORLD)
        self.rejoin()

    def rejoin(self) -> None:
        """Leave Horovod's present world and join the next one."""
        raise NotImplementedError
