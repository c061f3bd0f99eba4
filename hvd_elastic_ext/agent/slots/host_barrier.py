"""Which processes of a host may pass a barrier that nobody of the job's world takes part in. Pure.

A process that comes later than the others runs the script's part before the training function without peers. If it
comes to a barrier there, it waits for those processes of its host that come later, too, and have not come so far:
``if local_rank() == 0: download(); barrier()``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

Place = tuple[int, int]
"""A place in a script: the training call before it, and the number of the barrier from there on; (call, 0) before the
first one. Places of a script are passed in this order."""


class Standing(NamedTuple):
    """A living process that is in no world yet. ``reached``: how far it has come. ``waits``: it waits there."""

    slot: int
    reached: Place
    waits: bool = False


def released(processes: Iterable[Standing]) -> list[int]:
    """The slots whose processes need not wait any longer."""
    known = list(processes)
    if not any(each.waits for each in known):
        return []
    last = min(each.reached for each in known)
    return [each.slot for each in known if each.waits and each.reached <= last]
