"""The interface of all sources of hosts, and what they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.core.publication import Departure


@dataclass(frozen=True, slots=True)
class Observation:
    """The hosts that a source shows at one look: ``hosts`` are usable, ``departing`` are about to go. Their order has
    no meaning.

    ``doubt``: why this may be outdated; else empty.
    """

    hosts: HostSet
    departing: tuple[Departure, ...] = ()
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """The source is changing at this moment. This is an error only if it lasts. ``where`` and ``why`` are as in
    :class:`SourceUnavailable`.
    """

    where: str
    why: str


class Source(Protocol):
    """Returns the present hosts, and reports when to read them again.

    :meth:`read` returns the whole present state, even if changes were missed. A source never decides what follows from
    a failed look.
    """

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to watch. The source calls ``changed``, from any thread, when :meth:`read` may return something new."""

    def read(self) -> Observation | Unsettled:
        """Look now.

        Raises :class:`SourceUnavailable` if the source cannot be read now, :class:`BadHosts` if its content is not a
        list of hosts.
        """

    def stop(self) -> None:
        """End the watch and its threads. May be called again, and before :meth:`start`."""
