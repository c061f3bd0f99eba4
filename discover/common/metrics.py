"""Metrics of the daemon for Prometheus; the only importer of ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.publication import Publication

CONTENT_TYPE = CONTENT_TYPE_LATEST

LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets in seconds: a removal takes less than 0.02, an addition the probe's and the settle time besides."""


class Metrics:
    """Updated by the loop, rendered by the HTTP server; safe from any thread."""

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
        self._cluster: ClusterMetrics | None = None
        self._writing: WriteMetrics | None = None

    def for_cluster(self) -> ClusterMetrics:
        """Return the metrics of a cluster, which exist only if one is followed."""
        if self._cluster is None:
            self._cluster = ClusterMetrics(self._clock, self._registry)
        return self._cluster

    def for_writes(self) -> WriteMetrics:
        if self._writing is None:
            self._writing = WriteMetrics(self._registry)
        return self._writing

    def published(self, publication: Publication) -> None:
        self._published_at = self._clock.mono()
        self._publications.inc()
        self._hosts.set(len(publication.hosts))
        self._slots.set(publication.hosts.slots)
        self._departing.set(len(publication.departing))

    def delivered(self) -> None:
        if self._cluster is not None:
            self._cluster.delivered()

    def wrote(self) -> None:
        self._writes.inc()

    def refused(self) -> None:
        self._refused.inc()

    def failed(self) -> None:
        self._failures.inc()

    def fresh(self, fresh: bool) -> None:
        self._fresh.set(int(fresh))

    def render(self) -> bytes:
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(_named(name), text, registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(_named(name), text, registry=self._registry)

    def _age(self) -> float:
        at = self._published_at
        return float("nan") if at is None else self._clock.mono() - at


class ClusterMetrics:
    """How well a cluster is followed, and what that leads to; safe from any thread."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._asked: set[str] = set()
        self._warned: set[tuple[str, str]] = set()
        self._pending: dict[str, float] = {}
        self._warnings = Gauge(
            _named("warnings"),
            "Pods under a warning, by who gave it and what follows",
            ["source", "class"],
            registry=registry,
        )
        self._age = Gauge(
            _named("last_sync_age_seconds"),
            "Seconds since all there is was certainly known; NaN before the first time",
            ["resource"],
            registry=registry,
        )
        self._restarts = Counter(
            _named("watch_restarts"),
            "Watches that ended and were opened again",
            ["resource", "reason"],
            registry=registry,
        )
        self._relists = Counter(
            _named("relists"), "Lists asked for after the first of their resource", ["resource"], registry=registry
        )
        self._nodes = Gauge(_named("node_watch_enabled"), "1 while nodes may be read", registry=registry)
        self._latency = Histogram(
            _named("event_to_publication_seconds"),
            "From the arrival of the news of a change until it was published everywhere",
            ["change"],
            registry=registry,
            buckets=LATENCIES,
        )

    def listed(self, resource: str) -> None:
        if resource in self._asked:
            self._relists.labels(resource).inc()
        else:
            self._asked.add(resource)
            self._relists.labels(resource)

    def restarted(self, resource: str, reason: str) -> None:
        self._restarts.labels(resource, reason).inc()

    def follow(self, resource: str, heard: Callable[[], float | None]) -> None:
        """``heard`` returns when all ``resource`` were certainly known (monotonic seconds), None for never."""

        def age() -> float:
            at = heard()
            return float("nan") if at is None else max(0.0, self._clock.mono() - at)

        self._age.labels(resource).set_function(age)

    def nodes_read(self, may: bool) -> None:
        self._nodes.set(int(may))

    def warnings(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Set how many pods are under a warning now, by ``(source, class)``; pairs left out are 0."""
        for pair in self._warned.difference(counts):
            self._warnings.labels(*pair).set(0)
        for pair, count in counts.items():
            self._warnings.labels(*pair).set(count)
        self._warned.update(counts)

    def caused(self, causes: Iterable[tuple[str, float]]) -> None:
        """Note the kind of each change that was decided, and when its event arrived; see :class:`DampingResult`."""
        for change, at in causes:
            self._pending[change] = min(at, self._pending.get(change, at))

    def delivered(self) -> None:
        if self._pending:
            now = self._clock.mono()
            for change, at in self._pending.items():
                self._latency.labels(change).observe(max(0.0, now - at))
            self._pending.clear()


class WriteMetrics:
    """What is written to a cluster; safe from any thread. Those of a ConfigMap exist only if one is written."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._writes: Counter | None = None
        self._owner: Gauge | None = None
        self._events = Counter(
            _named("events_sent"), "Kubernetes Events that the server took", ["reason"], registry=registry
        )
        self._unsent = Counter(
            _named("events_unsent"), "Kubernetes Events that were refused or given up", ["reason"], registry=registry
        )
        self._reaped = Counter(_named("pods_reaped"), "Pods deleted by --reap-failed", ["cause"], registry=registry)
        self._reap_failures = Counter(
            _named("reap_failures"), "Deletions that failed and are repeated", registry=registry
        )

    def configmap(self) -> None:
        self._writes = Counter(_named("configmap_writes"), "Changes of the ConfigMap", registry=self._registry)
        self._owner = Gauge(
            _named("configmap_owner"), "1 while this daemon is the one to write", registry=self._registry
        )

    def wrote(self) -> None:
        if self._writes is not None:
            self._writes.inc()

    def owns(self, owns: bool) -> None:
        if self._owner is not None:
            self._owner.set(int(owns))

    def event(self, reason: str, *, sent: bool) -> None:
        (self._events if sent else self._unsent).labels(reason).inc()

    def reaped(self, cause: str) -> None:
        self._reaped.labels(cause).inc()

    def reap_failed(self) -> None:
        self._reap_failures.inc()


def _named(name: str) -> str:
    return f"hvd_discover_{name}"
