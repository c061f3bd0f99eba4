"""How the processes of one world talk: one door a library, all alike.

Belongs here: the ``Comms`` port and one implementation a library.
Never here: knowledge of what is being sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor


class Comms(Protocol):
    """The collectives a State needs. Every rank calls them in the same order, with the same names.

    Each may raise the library's own error for a lost peer; the loop knows it.
    """

    def rank(self) -> int:
        """This process's number in the world, from 0."""

    def size(self) -> int:
        """Processes in the world."""

    def broadcast_object(self, value: Any, *, name: str) -> Any:
        """Return rank 0's ``value`` on every rank; on rank 0 that is ``value`` itself."""

    def broadcast_tensors(self, tensors: Sequence[Tensor], *, name: str) -> None:
        """Overwrite every rank's tensors with rank 0's, in place; shapes, types and device kinds agree."""

    def max(self, number: int, *, name: str) -> int:
        """Return the largest ``number`` any rank gave."""

    def reset(self) -> None:
        """Leave the present world and join the next one. Blocks until it has formed."""
