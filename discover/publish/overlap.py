"""Keeps one old host in the list that stock Horovod reads, until a new host has been beside it for long enough.

Horovod 0.28.1 ends the job if two worlds in a row have no host in common, because no process can pass the state on.
Our own launcher transfers commits itself, so the publications that it reads have no overlap.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Final

from discover.verdicts.verdicts import Selection
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Publication

LOG = logging.getLogger("hvd-discover")

ENDED = ("Failed", "Succeeded")
"""Phases of pods in which no container runs any more."""

_name: Final = attrgetter("name")


@dataclass(frozen=True, slots=True)
class OverlapLimits:
    """For how many seconds old and new hosts are shown together: half of the time until the old ones go, but from
    ``least`` to ``most``. Horovod looks once a second, and its workers follow at their next commit.
    """

    least: float = 2.0
    most: float = 10.0

    def __post_init__(self) -> None:
        if not 1.0 < self.least <= self.most:
            raise ValueError("hosts stand together for more than 1 second, as Horovod looks once in a second")

    def stand(self, left: float) -> float:
        """Return these seconds, if the last of the old hosts goes in ``left`` seconds (infinite if unknown)."""
        return max(self.least, min(self.most, left / 2))


@dataclass(frozen=True, slots=True)
class PublishedHosts:
    """Hosts that a place has shown from ``since`` on (monotonic seconds). A reader may still use them."""

    hosts: HostSet
    since: float


def overlap(
    now: float,
    shown: tuple[PublishedHosts, ...],
    wanted: HostSet,
    *,
    stand: float,
    alive: Callable[[Host], bool],
    left: Mapping[str, float],
) -> tuple[HostSet, str]:
    """Choose which hosts to show: ``(hosts, reason)``. The reason is empty unless an old host is kept.

    ``shown``: what was shown before, newest last. ``stand``: seconds for which a reader may use a list after it was
    replaced. ``left``: seconds until hosts go, for those with a notice. The result shares a host with every list that a
    reader may still use, unless no host of that list is ``alive``.
    """
    kept: list[Host] = []
    there: Set[str] = wanted.by_name.keys()
    for old in still_valid(now, shown, stand=stand):
        if there.isdisjoint(map(_name, old.hosts)):  # it compares until it finds one, usually the first
            kept += _survivor([host for host in old.hosts if alive(host)], left)
            there = {*wanted.by_name, *map(_name, kept)}
    if not kept:
        return wanted, ""
    names = " ".join(host.name for host in kept)
    why = "there is no other host yet" if not wanted else "the new ones have to stand beside it for a while"
    return HostSet((*kept, *wanted)), f"{names} stays in the hosts file, for stock Horovod: {why}"


def still_valid(now: float, shown: tuple[PublishedHosts, ...], *, stand: float) -> tuple[PublishedHosts, ...]:
    """Return the lists that a reader may still use: the newest, and those replaced less than ``stand`` seconds ago."""
    older = [each for each, newer in pairwise(shown) if now - newer.since < stand]
    return (*older, *shown[-1:])


def _survivor(living: list[Host], left: Mapping[str, float]) -> list[Host]:
    """Return the host that goes last. A host that is dropped without a notice is probably lost: the last choice."""
    return [max(living, key=lambda host: left.get(host.name, -math.inf))] if living else []


class RunningHosts:
    """The hosts on which a process may still run: their pod exists and has not ended. The UID decides if it is
    known, else the name.
    """

    def __init__(self, selection: Selection) -> None:
        self.selection = selection
        there = [verdict for verdict in selection.verdicts if verdict.pod.phase not in ENDED]
        self._uids = {verdict.pod.uid for verdict in there}
        self._names = {verdict.host.name for verdict in there if verdict.host is not None}
        self._pods = {verdict.pod.key.name for verdict in there}

    def __contains__(self, host: Host) -> bool:
        if host.uid:
            return host.uid in self._uids
        return host.name in self._names or host.name.partition(".")[0] in self._pods


class Overlap:
    """Remembers which hosts a place has shown, and keeps the last survivor there for as long as necessary.

    ``alive`` returns whether a process may still run on a host. :meth:`publish` is called again and again, also with
    the same publication, and drops the survivor when its time is over.
    """

    def __init__(self, *, alive: Callable[[Host], bool], clock: Clock, limits: OverlapLimits | None = None) -> None:
        self._alive = alive
        self._clock = clock
        self._limits = limits or OverlapLimits()
        self._shown: tuple[PublishedHosts, ...] | None = None
        self._reason = ""

    def publish(
        self, publication: Publication, *, before: Callable[[], HostSet], write: Callable[[HostSet], None]
    ) -> None:
        """Write the hosts of ``publication`` and those that are kept. ``before`` reads what the place shows."""
        if self._shown is None:  # readers may use what an earlier run wrote
            self._shown = (PublishedHosts(before(), -math.inf),)
        now, wall = self._clock.mono(), self._clock.wall()
        ends = {each.host: each.deadline for each in publication.departing}
        left = {name: math.inf if end is None else end - wall for name, end in ends.items()}
        going = left.keys() & self._shown[-1].hosts.by_name.keys()
        stand = self._limits.stand(max((left[name] for name in going), default=math.inf))
        hosts, reason = overlap(now, self._shown, publication.hosts, stand=stand, alive=self._alive, left=left)
        write(hosts)
        past = still_valid(now, self._shown, stand=stand)
        if past[-1].hosts != hosts:
            for each in past:  # saves memory: after fast changes there are hundreds
                each.hosts.without_index()
            past = (*past, PublishedHosts(hosts, self._clock.mono()))  # not ``now``: the write may have taken long
        self._shown = past
        if reason != self._reason:
            self._reason = reason
            LOG.info("hosts file: %s", reason or "the last survivor is dropped")
