"""Which processes are to see by ``check_alive()`` that they are about to be taken away, and may save what they have.

Where others go on, whoever leaves is told when the next world is called. This is for where there is none to call yet:
all train on then until the hosts are gone, since others may come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.worlds import Worlds

SAVE_S: Final = 30.0
"""So long before its host is gone a process is told, though others are on their way: all that some clouds leave."""


def reclaimed(
    members: Collection[Life], leaves_by: Mapping[str, float], *, now: float, enough: bool
) -> frozenset[Life]:
    """Of ``members`` those that are to save what they have. Pure.

    ``leaves_by``: hosts that are about to go, and when that will be (mono). If what stays, or is
    to come, is not ``enough`` to go on, all are: the job is below its minimum.
    """
    leaving = frozenset(life for life in members if life.seat.host in leaves_by)
    if leaving and not enough:
        return frozenset(members)
    return frozenset(life for life in leaving if leaves_by[life.seat.host] - now <= SAVE_S)


class Reclaims:
    """Tells processes, and takes it back when a notice is withdrawn. To be asked at every look."""

    def __init__(self, station: Station, worlds: Worlds) -> None:
        self._station = station
        self._worlds = worlds
        self.all_by: float | None = None
        """When less than training needs will be left (mono; infinite if unknown); None if enough will be."""
        self._open = True
        """Somebody may have been told, if by an earlier launcher."""

    def look(self, now: float, wanted: Sequence[Seat]) -> None:
        """``wanted``: all the seats that there will be to work in."""
        station, leaves_by = self._station, self._station.leaves_by
        present = station.roster.present(self._worlds.members) if leaves_by or self._open else []
        self.all_by = None
        if not present:
            return
        self._open = bool(leaves_by)
        enough = station.rules.limits.size(len(wanted), begun=True) > 0
        going = [by for host, by in leaves_by.items() if station.roster.on(host)]
        self.all_by = min(going) if going and not enough else None
        told = reclaimed(self._worlds.members, leaves_by, now=now, enough=enough)
        for state in (True, False):
            news = [worker for worker in present if worker.reclaimed is not state and (worker.life in told) is state]
            station.tell_all(news, "reclaim", leaving=state)
            for worker in news:
                worker.reclaimed = state
