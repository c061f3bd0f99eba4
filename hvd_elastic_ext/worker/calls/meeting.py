"""What the ranks of a world do about their calls when they meet in a sync. Pure; every rank decides the same.

Usually all are in the same call, and each adds what its last call has left behind to its past. If some are behind, or
if some already know the result of this call, they catch up: one rank sends its past, and the others return from their
functions with the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """One rank. ``call``: the call that it is in; 0 outside of any, where ranks do nothing about calls.

    ``past``: number of results that it has. ``left``: the digest of what its last call has returned, until that was
    compared; 0 if it has not run that call itself. ``generators`` and ``others``: the digests of torch's random
    generators then, and of others.
    """

    call: int
    past: int
    left: int = 0
    generators: int = 0
    others: int = 0


@dataclass(frozen=True, slots=True)
class Meeting:
    """What follows.

    ``keeps``: ranks that add what their last call has left behind to their past. ``generators``, ``others``: whether
    these random generators are equal on them. ``refused``: why they do not. ``drops``: ranks that have added it before
    it was compared, and take it away. ``sender``: the rank that then sends its past to those in ``receives``. ``over``:
    ranks whose call is over; the others meet again if there are any.
    """

    keeps: frozenset[int] = frozenset()
    drops: frozenset[int] = frozenset()
    generators: bool = False
    others: bool = False
    refused: str = ""
    sender: int | None = None
    receives: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()


NOTHING = Meeting()
UNEQUAL = "the returned values differ between ranks"


def meet(rows: Sequence[Row]) -> Meeting:
    """Decide. See the module's docstring."""
    if any(row.call == 0 for row in rows):
        return NOTHING
    front = max(row.call for row in rows)
    at_front = [rank for rank, row in enumerate(rows) if row.call == front]
    behind = frozenset(range(len(rows))) - frozenset(at_front)
    if not behind and max(row.past for row in rows) > front:
        sender = max(at_front, key=lambda rank: (rows[rank].past, -rank))
        short = frozenset(rank for rank in at_front if rows[rank].past < rows[sender].past)
        return Meeting(sender=sender, receives=short, over=frozenset(at_front))
    whole = frozenset(rank for rank in at_front if rows[rank].past >= front)
    compared = frozenset(rank for rank in at_front if rows[rank].past >= front - 1 and rows[rank].left)
    keeps, drops, equal, others, refused = frozenset[int](), frozenset[int](), False, False, ""
    if whole <= compared:
        refused = UNEQUAL if len({rows[rank].left for rank in compared}) > 1 else ""
        keeps = frozenset() if refused else compared - whole
        drops = whole if refused else frozenset()
        equal = len({rows[rank].generators for rank in compared}) == 1
        others = len({rows[rank].others for rank in compared}) == 1
    have = keeps | whole - drops
    short = frozenset(rank for rank, row in enumerate(rows) if row.past < front)
    receives = short - have if have else frozenset[int]()
    return Meeting(keeps, drops, equal, others, refused, min(have) if receives else None, receives, behind)
