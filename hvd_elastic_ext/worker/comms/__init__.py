"""Collective operations of one world, with one of several libraries.

Belongs here: the ``Comms`` port, and one implementation per library.
Never here: knowledge of the data; unpickling of anything that a peer sends.
"""

from __future__ import annotations

from typing import Final, Protocol

from torch import Tensor

from hvd_elastic_ext.worker.stock import HorovodInternalError

PeerLost: Final = HorovodInternalError
"""The error of a lost peer with every library. It is Horovod's own error, which users' ``except`` clauses name."""


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

    def sum(self, data: Tensor, *, name: str) -> None:
        """Overwrite ``data`` with the sum over all ranks, in place; any numeric type, the same shape on all ranks."""

    def max(self, number: int, *, name: str) -> int:
        """Return the largest ``number`` of all ranks; 64 bits, signed."""
        return self.start_max(number, name=name).wait()

    def start_max(self, number: int, *, name: str) -> Pending:
        """Begin :meth:`max` and return at once.

        An earlier one of this name may still be pending. If the engine cannot have two, this waits for the earlier one.
        """

    def begun_by_script(self) -> int | None:
        """How many collectives the script has begun in this process, without those of this object. It only grows.

        None if it is unknown: for example, a script's calls of ``mpi4py`` are not counted.
        """
        return None

    def reset(self) -> None:
        """Leave the present world and join the next one. Blocks until it has formed."""
