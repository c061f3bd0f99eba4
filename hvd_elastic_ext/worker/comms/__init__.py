"""How the processes of one world talk: one door a library, all alike.

Belongs here: the ``Comms`` port and one implementation a library.
Never here: knowledge of what is being sent, and objects: nothing that comes from a peer is unpickled.
"""

from __future__ import annotations

from typing import Final, Protocol

from horovod.common.exceptions import HorovodInternalError
from torch import Tensor

PeerLost: Final = HorovodInternalError
"""What a lost peer is, whatever the library: Horovod's own name, so that users' ``except`` clauses hold."""


class Pending(Protocol):
    """A number on its process. It may be dropped at any time, also across a reset: nobody has to wait for it."""

    def wait(self) -> int:
        """Return the result; again, if called again.

        Raises ``HorovodInternalError`` if a peer was lost, or if the world in which this began is gone.
        """


class Comms(Protocol):
    """The collectives a State needs.

    Every rank calls them in the same order and with the same names. In a world
    of one nothing is sent: data stays as it is, a number is its own maximum.
    A lost peer is a :data:`PeerLost`; other errors are the caller's own and stay what they are.
    An implementation that names this class as its base has its :meth:`max` from it.
    """

    def rank(self) -> int:
        """This process's number in the world, from 0."""

    def size(self) -> int:
        """Processes in the world."""

    def broadcast(self, data: Tensor, *, root: int, name: str) -> None:
        """Overwrite every rank's ``data`` with that of rank ``root``, in place.

        ``data`` is a flat, contiguous uint8 tensor in host memory (mapped memory
        too), of the same length on all ranks; several GB are welcome.
        """

    def sum(self, data: Tensor, *, name: str) -> None:
        """Overwrite ``data`` with the sum over all ranks, in place; any numeric type, the same shape on all ranks."""

    def max(self, number: int, *, name: str) -> int:
        """Return the largest ``number`` any rank gave; 64 bits, signed."""
        return self.start_max(number, name=name).wait()

    def start_max(self, number: int, *, name: str) -> Pending:
        """Begin :meth:`max` and return at once.

        Beginning it under a name whose earlier one is still on its way waits
        for that one first.
        """

    def reset(self) -> None:
        """Leave the present world and join the next one. Blocks until it has formed."""
