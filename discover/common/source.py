"""The interface of all sources of hosts, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Departure


@dataclass(frozen=True, slots=True)
class HostsDelta:
    """What was changed in a set of hosts: under all names but these it has the same hosts as ``before``."""

    before: HostSet
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Observation:
    """The hosts that a source shows at one look: usable ones, and those about to go. Their order means nothing.

    ``doubt``: why this may be outdated; empty otherwise. ``earlier``: what an earlier run of the daemon published, in
    its order, if that became known only now; it counts in the first observation only. ``changed``: what was changed in
    ``hosts`` last, if that is known.
    """

    hosts: HostSet
    departing: tuple[Departure, ...] = ()
    doubt: str = ""
    earlier: HostSet = field(default_factory=HostSet)
    changed: HostsDelta | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unsettled:
    """The source is changing at this moment: no error, unless it lasts. ``where`` and ``why`` as in
    :class:`SourceUnavailable`.
    """

    where: str
    why: str


class Source(Protocol):
    """Returns the present hosts and reports when to read them again.

    :meth:`read` returns the whole current state, however many changes were missed. A source never decides what follows
    from a failed look.
    """

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to watch. ``changed`` is called, from any thread, when :meth:`read` may return something new."""

    def read(self) -> Observation | Unsettled:
        """Look now.

        Raises :class:`SourceUnavailable` if nothing can be seen now, :class:`BadHosts` if what is there is no host
        list.
        """

    def stop(self) -> None:
        """End the watch and its threads. May be repeated, and come before :meth:`start`."""
