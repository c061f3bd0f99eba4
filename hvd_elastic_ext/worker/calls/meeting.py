"""What the ranks of a world do about their calls when they meet in a sync. Pure; every rank decides the same.

Usually all are in the same call, and each adds what its last call has left behind to its past. If some are behind, or
if some already know the result of this call, they catch up: one rank sends its past, and the others return from their
functions with the results.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from hvd_elastic_ext.core.call_results import UNEQUAL

EMPTY: Final = 1
"""The digest of what no collective has returned."""


class Row(NamedTuple):
    """What one rank knows of its calls."""

    call: int
    """The call that it is in; 0 outside of any, where ranks do nothing about calls."""
    past: int
    """Number of results that it has."""
    left: int = 0
    """The digest of what its last call has returned, until that was compared; 0 if it has not run that call itself;
    :data:`REFUSED`."""
    generators: int = 0
    """The digest of torch's random generators after that call."""
    others: int = 0
    """The same of other random generators."""
    collectives: int = 0
    """The digest of what the script's collectives have returned since then; 0 if this rank has not run them together
    with others."""
    known: int = 0
    """In call 1, that digest in the past."""
    begun: int = 0
    """The digest of torch's random generators when this call began."""
    bytes: int = 0
    """Bytes of the results that it has."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """What follows from the rows of all ranks."""

    keeps: frozenset[int] = frozenset()
    """Ranks that add what their last call has left behind to their past."""
    drops: frozenset[int] = frozenset()
    """Ranks that have added it before it was compared, and take it away."""
    generators: bool = False
    """Whether torch's random generators are equal on those that keep it."""
    others: bool = False
    """Whether other random generators are."""
    refused: str = ""
    """Why no rank keeps it; empty if some do."""
    sender: int | None = None
    """The rank that then sends its past to those in ``receives``."""
    receives: frozenset[int] = frozenset()
    over: frozenset[int] = frozenset()
    """Ranks whose call is over. If there are any, the others meet again."""
    unequal: bool = False
    """Whether collectives have returned different things to the ranks."""
    amends: frozenset[int] = frozenset()
    """Ranks whose past has the collectives of an earlier start of the job, and gets those of this one."""
    differs: bool = False
    """Whether torch's generators differ on those that have run the call, and are not seeded alike before this one,
    whoever keeps its result."""


NOTHING = Meeting()
REFUSED: Final = -1
"""Instead of the digest: this rank has refused the result of its last call, since ranks had returned different values.
"""
MISSING: Final = "the result of an earlier call was not kept"


def meet(rows: Sequence[Row]) -> Meeting:
    """Decide. See the module's docstring."""
    if any(row.call == 0 for row in rows):
        return NOTHING
    front = max(row.call for row in rows)
    at_front = [rank for rank, row in enumerate(rows) if row.call == front]
    behind = frozenset(range(len(rows))) - frozenset(at_front)
    unequal = len({rows[rank].collectives for rank in at_front} - {0}) > 1
    amends = frozenset(
        rank for rank in at_front if rows[rank].known and (unequal or rows[rank].collectives != rows[rank].known)
    )
    if not behind and max(row.past for row in rows) > front:
        sender = max(at_front, key=lambda rank: (rows[rank].past, -rank))
        short = frozenset(rank for rank in at_front if rows[rank].past < rows[sender].past)
        over = frozenset(at_front)
        return Meeting(sender=sender, receives=short, over=over, unequal=unequal, amends=amends)
    whole = frozenset(rank for rank in at_front if rows[rank].past >= front)
    compared = frozenset(rank for rank in at_front if rows[rank].past >= front - 1 and rows[rank].left)
    returned = {rows[rank].left for rank in at_front} - {0}
    # Also a rank that has not run the call itself drops it: it may have the result of a rank that kept its own.
    refused = UNEQUAL if len(returned) > 1 or REFUSED in returned else ""
    keeps, drops, equal, others = frozenset[int](), whole if refused else frozenset[int](), False, False
    if whole <= compared:
        keeps = frozenset() if refused else _recorded(rows, compared - whole) or compared - whole
        equal = len({rows[rank].generators for rank in compared}) == 1
        others = len({rows[rank].others for rank in compared}) == 1
    have = keeps | whole - drops
    if returned and not refused and not have:
        refused = MISSING
    short = frozenset(rank for rank, row in enumerate(rows) if row.past < front)
    receives = short - have if have else frozenset[int]()
    sends = min(have) if receives else None
    ran = [rows[rank] for rank in at_front if rows[rank].left > 0]
    differs = len({row.generators for row in ran}) > 1 and len({row.begun for row in ran}) > 1
    return Meeting(keeps, drops, equal, others, refused, sends, receives, behind, unequal, amends, differs)


def _recorded(rows: Sequence[Row], ranks: Set[int]) -> frozenset[int]:
    """Those ranks that know what collectives have returned, if these have returned anything."""
    return frozenset(rank for rank in ranks if rows[rank].collectives > EMPTY)
