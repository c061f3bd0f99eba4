"""The port of every source of hosts, and what comes through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Departure


@dataclass(frozen=True, slots=True)
class Observation:
    """All a source sees at one look: hosts that can be used, hosts about to go. Order says nothing.

    ``doubt``: why this may be outdated, though it is still followed; empty while it is not. ``earlier``: what an
    earlier life of the daemon published, in its order, if that was found out only now; counts in the first only.
    """

    hosts: HostSet
    departing: tuple[Departure, ...] = ()
    doubt: str = ""
    earlier: HostSet = field(default_factory=HostSet)


@dataclass(frozen=True, slots=True)
class Unsettled:
    """What is there is being changed this moment: no error, unless it stays so.

    ``where`` and ``why`` are as in :class:`SourceUnavailable`.
    """

    where: str
    why: str


class Source(Protocol):
    """Says which hosts there are, and when it may be worth asking again.

    Level, not edge: :meth:`read` tells the whole truth of now, however many
    changes were missed. No source decides what becomes of a bad look.
    """

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to watch. ``changed`` is called, from any thread, for whatever :meth:`read` may now tell anew."""

    def read(self) -> Observation | Unsettled:
        """Look now.

        Raises :class:`SourceUnavailable` if there is nothing to be seen just
        now, :class:`BadHosts` if what is there is no host list.
        """

    def stop(self) -> None:
        """End the watch and its threads. May be repeated, and come before :meth:`start`."""
