"""The newest accepted host list, passed from the source's thread to the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from hvd_elastic_ext.core.errors import HOSTS_KEPT, ElasticError, SourceUnavailable
from hvd_elastic_ext.core.hosts import HostChange, HostSet, diff, keep_seniority
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.core.publication import Departure, Publication

log = logging.getLogger(__name__)


class HostFeed:
    """Holds the newest accepted hosts. A refused or unreadable list removes no host.

    Each reason for a refusal is written to the journal once, until it changes.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._lock = threading.Lock()
        self._accepted: Publication | None = None
        self._hosts = HostSet()
        self._reason: str | None = None
        self._number = 0
        self.generation = 0
        """The number of the present world, set by the driver; journal lines have it."""
        self.listener: Callable[[], object] = lambda: None
        """Called, from any thread, on every change, refusal and failure."""
        self.keeps = False
        """Whether hosts stay in use although the newest accepted list names none; set by the driver."""
        self.failure: ElasticError | None = None
        """Set when no host list can ever come: the job cannot go on."""

    def offer(self, publication: Publication) -> None:
        """Accept a publication unless it is late."""
        with self._lock:
            if not publication.supersedes(self._accepted):
                return
            hosts = keep_seniority(self._hosts, publication.hosts)
            change = diff(self._hosts, hosts)
            before = self._accepted
            same = not change and publication.has_same_content(before)
            same_names = not change and before is not None and publication.departing == before.departing
            refused, self._reason = self._reason, None
            self._accepted, self._hosts = publication, hosts
            if same and refused is None:
                return
            if not same_names:  # a new price or node alone gives no line: prices of spot hosts change often
                self._record(publication, hosts, change)
            elif refused is not None:
                log.info("the host list is accepted again; it names the same hosts as before")
        self.listener()

    def _record(self, publication: Publication, hosts: HostSet, change: HostChange) -> None:
        self._number += 1
        self.journal.record(
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

    def refuse(self, error: ElasticError) -> None:
        """Note why the newest list was not accepted."""
        with self._lock:
            hosts_stay = bool(self._hosts) or self.keeps
            kept = HOSTS_KEPT if hosts_stay and isinstance(error, SourceUnavailable) else ""
            reason = f"{error}{kept}"
            if reason == self._reason:
                return
            self._reason = reason
            more = {"kept": True} if hosts_stay else {}
            self.journal.record("refused", generation=self.generation, reason=self._reason, **more)
        self.listener()

    def hosts(self) -> HostSet:
        """The hosts as they are now, most senior first."""
        with self._lock:
            return self._hosts

    @property
    def reason(self) -> str | None:
        """Why the newest list was refused, or None if it was accepted."""
        with self._lock:
            return self._reason

    @property
    def answered(self) -> bool:
        """Whether a list was accepted, even an empty one."""
        with self._lock:
            return self._accepted is not None

    def departing(self) -> tuple[Departure, ...]:
        """Hosts that are about to go, as the newest accepted publication says."""
        with self._lock:
            return self._accepted.departing if self._accepted is not None else ()

    def fail(self, error: ElasticError) -> None:
        """Give up this source for good."""
        self.failure = error
        self.listener()
