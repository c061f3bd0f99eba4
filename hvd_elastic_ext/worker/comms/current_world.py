"""The present world of this process, with its rank and size: for samplers, learning rates and ``elastic.rank()``.

Code that joins a world calls :func:`use`. Before that, the library that is initialised gives the rank. Callers look it
up at each use, because the world changes.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import distributed

from hvd_elastic_ext.worker.comms import Comms
from hvd_elastic_ext.worker.comms.horovod import HorovodComms
from hvd_elastic_ext.worker.process import standby
from hvd_elastic_ext.worker.stock import PRESENT


class RankAndSize(NamedTuple):
    """``rank`` counts from 0, ``size`` is the number of processes."""

    rank: int
    size: int


ALONE = RankAndSize(0, 1)

_in_use: list[Comms] = []


def use(comms: Comms | None) -> None:
    """Take rank and size from ``comms``; with None, from the library that is initialised."""
    _in_use[:] = [comms] if comms is not None else []


def comms() -> Comms | None:
    """Return the last argument of :func:`use`, or None."""
    return _in_use[0] if _in_use else None


def current() -> RankAndSize:
    """Return rank and size now: the planned ones while the process is parked, :data:`ALONE` outside of any world."""
    planned = standby.planned()
    if planned is not None:
        return RankAndSize(planned.rank, planned.size)
    found = comms() or (HorovodComms() if PRESENT else None)
    if found is None:
        return _place_in_torch_distributed()
    try:
        return RankAndSize(found.rank(), found.size())
    except ValueError:  # raised before hvd.init() and after hvd.shutdown()
        return _place_in_torch_distributed()


def _place_in_torch_distributed() -> RankAndSize:
    if distributed.is_available() and distributed.is_initialized():
        return RankAndSize(distributed.get_rank(), distributed.get_world_size())
    return ALONE
