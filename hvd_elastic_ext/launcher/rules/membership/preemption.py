"""Which processes are to save their state because hosts are taken away. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId

SAVE_S: Final = 30.0
"""A process is warned this long before its host is gone, even if other hosts may come: some clouds give no more
time.
"""


def reclaimed(
    members: Collection[ProcessId], leaves_by: Mapping[str, float], *, now: float, enough: bool
) -> frozenset[ProcessId]:
    """The ``members`` that have to save their state. Pure.

    ``leaves_by``: hosts that will go, and when (mono). If present and coming hosts are not ``enough``, all members have
    to: the job is below its minimum.
    """
    leaving = frozenset(life for life in members if life.seat.host in leaves_by)
    if leaving and not enough:
        return frozenset(members)
    return frozenset(life for life in leaving if now >= leaves_by[life.seat.host] - SAVE_S)
