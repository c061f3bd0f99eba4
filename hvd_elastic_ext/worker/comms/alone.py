"""A world of one process without any library: for a script without a launcher and without Horovod."""

from __future__ import annotations

from torch import Tensor

from hvd_elastic_ext.worker.comms import Comms, Pending
from hvd_elastic_ext.worker.comms.tensors import Finished, pieces, reducible


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
