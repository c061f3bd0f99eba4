"""The newest accepted host list, handed from whichever thread learns it to the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hvd_elastic_ext.core.errors import ElasticError
from hvd_elastic_ext.core.hosts import HostChange, HostSet, diff, keep_seniority
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.publication import Departure, Publication


class HostFeed:
    """Level, not edge: it holds the hosts as they are now; whoever looks late misses nothing.

    A refused or unreadable list never takes a host away: the last good one stays.
    Each reason for a refusal is journalled once, until it changes.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._accepted: Publication | None = None
        self._hosts = HostSet()
        self._reason: str | None = None
        self._number = 0
        self.generation = 0
        """That of the present world, set by the driver; journal lines carry it."""
        self.changed = threading.Event()
        """Set on every change, refusal and closing; whoever waits clears it before looking."""
        self.listener: Callable[[], object] = lambda: None
        """Called, from whichever thread, after :attr:`changed` was set."""
        self.failure: ElasticError | None = None
        """Set when no host list can ever come: the job cannot go on."""

    def offer(self, publication: Publication) -> HostChange:
        """Accept a publication unless it is late; say what changed (nothing, for a late one)."""
        with self._lock:
            if not publication.supersedes(self._accepted):
                return HostChange()
            hosts = keep_seniority(self._hosts, publication.hosts)
            change = diff(self._hosts, hosts)
            news = change or not publication.says_the_same(self._accepted)
            self._accepted, self._hosts, self._reason = publication, hosts, None
            if not news:
                return change
            self._number += 1
            self._journal.record(
                "published",
                generation=self.generation,
                number=self._number,
                source=publication.source,
                hosts=hosts.as_slots(),
                departing=[d.host for d in publication.departing],
                added=change.added,
                removed=change.removed,
                grown=change.grown,
                shrunk=change.shrunk,
            )
        self._tell()
        return change

    def refuse(self, error: ElasticError) -> None:
        """Note why the newest list was not accepted."""
        with self._lock:
            if str(error) == self._reason:
                return
            self._reason = str(error)
            self._journal.record("refused", generation=self.generation, reason=self._reason)
        self._tell()

    def hosts(self) -> HostSet:
        """The hosts as they are now, most senior first."""
        with self._lock:
            return self._hosts

    @property
    def reason(self) -> str | None:
        """Why the newest list was refused, or None if it was accepted."""
        with self._lock:
            return self._reason

    def departing(self) -> tuple[Departure, ...]:
        """Hosts that are about to go, as the newest accepted publication says."""
        with self._lock:
            return self._accepted.departing if self._accepted is not None else ()

    def fail(self, error: ElasticError) -> None:
        """Give up on this source for good."""
        self.failure = error
        self._tell()

    def _tell(self) -> None:
        self.changed.set()
        self.listener()
