"""Whether processes that wait in ``hvd.init()`` meet others there, before their training loop. Pure.

A script that imports ``hvd_elastic_ext.torch`` can join a world in two places: in ``hvd.init()``, where nobody trains
yet, and in its training loop. What lies between is its *prologue*: its collectives act on all ranks only if all of them
run it together.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final

RECORD_S: Final = 30.0
"""Most seconds that a process waits in ``hvd.init()`` for what collectives have returned to the others. Slots get it
one after the other: while one gets it, or a host that is needed for it writes a checkpoint, this time begins anew."""
RECORD_MOST_S: Final = 600.0
"""Most seconds of all that."""


class Where(Enum):
    """Where in its program a living process is."""

    INIT = "init"
    """In ``hvd.init()``, or before it. Its world, if it was called to one, has not formed."""
    PROLOGUE = "prologue"
    """Between ``hvd.init()`` and its training loop, in a world with others."""
    APART = "apart"
    """In its training loop, or alone on its way there: it passes no place any more where it could be met earlier."""


class Meeting(Enum):
    """What happens to a process that waits in ``hvd.init()``."""

    READY = "ready"
    """It is ready for a world, which forms there."""
    WAIT = "wait"
    """It waits until the others have begun their training loop, or are lost."""
    ALONE = "alone"
    """It goes on alone, and meets the others in the training loop."""


def decide(others: Iterable[Where]) -> Meeting:
    """Decide about all processes that wait in ``hvd.init()``. ``others``: where the other living processes are.

    If those in a prologue are lost before their loop, the waiting ones can still run a prologue together with their
    successors: so they are not sent alone before.
    """
    places = set(others)
    if Where.APART in places:
        return Meeting.ALONE
    if Where.PROLOGUE in places:
        return Meeting.WAIT
    return Meeting.READY


def waits_until(*, expected: bool, there: bool, since: float, idle_since: float) -> float | None:
    """Until when a process waits in ``hvd.init()`` that would go on alone since then; None if it goes on now.

    ``expected``: whether the others have called collectives before their training loop. ``there``: whether what these
    have returned is in its slot. ``idle_since``: since when it could have come.
    """
    return min(idle_since + RECORD_S, since + RECORD_MOST_S) if expected and not there else None
