"""Numbers about the daemon in Prometheus' form; the only importer of prometheus_client."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.publication import Publication

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """Counted by the loop, rendered by the server; safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._published_at: float | None = None
        self._hosts = self._gauge("hosts", "Hosts published as usable")
        self._slots = self._gauge("slots", "Training processes that all published hosts together can run")
        self._departing = self._gauge("departing", "Hosts published as about to go")
        self._fresh = self._gauge("fresh", "1 while the source is followed and every publication got out")
        age = self._gauge("last_publication_age_seconds", "Seconds since the hosts last changed; NaN before the first")
        age.set_function(self._age)
        self._publications = self._counter("publications", "Changes of the hosts that were published")
        self._writes = self._counter("file_writes", "Files replaced")
        self._refused = self._counter("refused", "Looks at the source that were not followed, the last hosts kept")
        self._failures = self._counter("publish_failures", "Attempts to publish that failed and are repeated")

    def published(self, publication: Publication) -> None:
        self._published_at = self._clock.mono()
        self._publications.inc()
        self._hosts.set(len(publication.hosts))
        self._slots.set(publication.hosts.slots)
        self._departing.set(len(publication.departing))

    def wrote(self) -> None:
        self._writes.inc()

    def refused(self) -> None:
        self._refused.inc()

    def failed(self) -> None:
        self._failures.inc()

    def fresh(self, fresh: bool) -> None:
        self._fresh.set(int(fresh))

    def render(self) -> bytes:
        """Return all of them in the text exposition format."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"hvd_discover_{name}", text, registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"hvd_discover_{name}", text, registry=self._registry)

    def _age(self) -> float:
        at = self._published_at
        return float("nan") if at is None else self._clock.mono() - at
