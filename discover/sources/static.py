"""Hosts from the command line."""

from __future__ import annotations

from collections.abc import Callable

from discover.common.source import Observation
from hvd_elastic_ext.core.hosts import HostSet


class StaticSource:
    """A fixed list of hosts."""

    def __init__(self, hosts: HostSet) -> None:
        self._sight = Observation(hosts)

    def start(self, changed: Callable[[], None]) -> None:
        """Does nothing; ``changed`` is never called."""

    def read(self) -> Observation:
        """Return the hosts, always as the same object."""
        return self._sight

    def stop(self) -> None:
        """Does nothing, because there is no thread."""
