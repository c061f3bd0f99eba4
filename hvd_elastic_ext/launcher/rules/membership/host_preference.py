"""Which hosts are preferred, and so which seats get processes, if there are more than the largest world takes. Pure.

To prefer some hosts to others, such as the cheapest, change ``preference`` in :func:`seats`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.membership.next_world import Stage, WorldLimits
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

_NEARNESS: Final[Mapping[Stage | None, int]] = {Stage.LIVE: 0, Stage.PARKED: 1, Stage.BOOTING: 2, None: 3}
"""How near to the world the process of a seat is: the lowest first."""


@lru_cache(maxsize=1 << 16)
def _seats(host: str, slots: tuple[int, ...]) -> tuple[Seat, ...]:
    """The seats of one host. They are the same objects for each list, because they are keys of many tables."""
    return tuple([Seat(host, slot) for slot in slots])


def seats(
    hosts: Sequence[tuple[Host, Sequence[int]]],
    limits: WorldLimits,
    taken: Callable[[], Mapping[Seat, Stage]] = dict,
    holders: Callable[[], frozenset[str]] = frozenset,
) -> tuple[Seat, ...]:
    """Seats that should be filled; ``hosts``: most senior first, with their usable slots.

    As many as the largest world may have. Of more seats the ``taken`` ones come first, the most advanced before the
    others, so a host that comes back does not replace its replacement. While no process trains, the ``holders`` of the
    newest commit come first. Below the smallest world all seats are wanted. ``taken`` and ``holders`` are called only
    if there are more seats.
    """
    every = tuple([seat for host, slots in hosts for seat in _seats(host.name, tuple(slots))])
    size = limits.size(len(every), begun=True)
    if not size or size == len(every):
        return every
    stages = taken()
    needed = frozenset() if Stage.LIVE in stages.values() else holders()

    def preference(offer: tuple[Host, Seat]) -> tuple[bool, int]:
        """The lowest value is chosen first; of equal ones, the most senior seat."""
        host, seat = offer
        return host.name not in needed, _NEARNESS[stages.get(seat)]

    first = sorted(((host, Seat(host.name, slot)) for host, slots in hosts for slot in slots), key=preference)
    chosen = frozenset(seat for _, seat in first[:size])
    return tuple(seat for seat in every if seat in chosen)
