"""Metrics of the daemon for Prometheus. No other module imports ``prometheus_client``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.publication import Publication

CONTENT_TYPE = CONTENT_TYPE_LATEST
NAMESPACE = "hvd_discover"

LATENCIES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Buckets in seconds. A removal takes less than 0.02. An addition also takes the probe and the settle time."""


class Metrics:
    """The loop updates them, and the HTTP server renders them. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._published_at: float | None = None
        gauge, counter = _makers(self._registry)
        self._hosts = gauge("hosts", "Hosts published as usable")
        self._slots = gauge("slots", "Training processes that all published hosts together can run")
        self._departing = gauge("departing", "Hosts published as about to go")
        self.fresh = gauge("fresh", "1 while the source is followed and every publication got out")
        age = gauge("last_publication_age_seconds", "Seconds since the hosts last changed; NaN before the first")
        age.set_function(lambda: _age(clock, self._published_at))
        self._publications = counter("publications", "Changes of the hosts that were published")
        self.writes = counter("file_writes", "Files replaced")
        self.refused = counter("refused", "Looks at the source that were not followed, the last hosts kept")
        self.failures = counter("publish_failures", "Attempts to publish that failed and are repeated")
        self._cluster: ClusterMetrics | None = None
        self._writing: WriteMetrics | None = None

    def for_cluster(self) -> ClusterMetrics:
        """Return the metrics of a cluster; make them at the first call."""
        if self._cluster is None:
            self._cluster = ClusterMetrics(self._clock, self._registry)
        return self._cluster

    def for_writes(self) -> WriteMetrics:
        """Return the metrics of writes to a cluster; make them at the first call."""
        if self._writing is None:
            self._writing = WriteMetrics(self._registry)
        return self._writing

    def published(self, publication: Publication) -> None:
        """Count a change of the hosts, and set the numbers of hosts, slots and departing hosts."""
        self._published_at = self._clock.mono()
        self._publications.inc()
        self._hosts.set(len(publication.hosts))
        self._slots.set(publication.hosts.slots)
        self._departing.set(len(publication.departing))

    def delivered(self) -> None:
        """Record that the last publication is in every place; see :meth:`ClusterMetrics.delivered`."""
        if self._cluster is not None:
            self._cluster.delivered()

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class ClusterMetrics:
    """Metrics of how a cluster is followed. Safe from any thread."""

    def __init__(self, clock: Clock, registry: CollectorRegistry) -> None:
        self._clock = clock
        self._asked: set[str] = set()
        self._pending: dict[str, float] = {}
        gauge, counter = _makers(registry)
        self._warnings = _Warnings("Pods under a warning, by who gave it and what follows")
        registry.register(self._warnings)
        self._age = gauge(
            "last_sync_age_seconds",
            "Seconds since all there is was certainly known; NaN before the first time",
            ["resource"],
        )
        self._restarts = counter("watch_restarts", "Watches that ended and were opened again", ["resource", "reason"])
        self._relists = counter("relists", "Lists asked for after the first of their resource", ["resource"])
        self.nodes_read = gauge("node_watch_enabled", "1 while nodes may be read")
        self._latency = Histogram(
            "event_to_publication_seconds",
            "From the arrival of the news of a change until it was published everywhere",
            ["change"],
            namespace=NAMESPACE,
            registry=registry,
            buckets=LATENCIES,
        )

    def listed(self, resource: str) -> None:
        """Count a request for a list of ``resource``. The first one does not count as a relist."""
        if resource in self._asked:
            self._relists.labels(resource).inc()
        else:
            self._asked.add(resource)
            self._relists.labels(resource)

    def restarted(self, resource: str, reason: str) -> None:
        """Count a watch of ``resource`` that has ended for ``reason`` and is opened again."""
        self._restarts.labels(resource, reason).inc()

    def follow(self, resource: str, heard: Callable[[], float | None]) -> None:
        """Set how old the knowledge of ``resource`` is. ``heard`` returns when all objects of it were last known with
        certainty (monotonic seconds), or None if they never were.
        """
        self._age.labels(resource).set_function(lambda: _age(self._clock, heard()))

    def count_warnings(self, counts: Callable[[], Mapping[tuple[str, str], int]]) -> None:
        """Set what counts the pods under a warning, by ``(source, class)``. It is called whenever metrics are rendered.
        A pair that it has returned before and lacks now is 0.
        """
        self._warnings.counts = counts

    def caused(self, causes: Iterable[tuple[str, float]]) -> None:
        """Remember the kind of each decided change, and when its event arrived; see :class:`DampingResult`."""
        for change, at in causes:
            self._pending[change] = min(at, self._pending.get(change, at))

    def delivered(self) -> None:
        """Record the seconds since each change given to :meth:`caused` arrived, and forget these changes."""
        now = self._clock.mono()
        for change, at in self._pending.items():
            self._latency.labels(change).observe(max(0.0, now - at))
        self._pending.clear()


class _Warnings(Collector):
    """The gauge of warnings. They are counted when somebody reads them, because looks are far more frequent."""

    def __init__(self, about: str) -> None:
        self._about = about
        self.counts: Callable[[], Mapping[tuple[str, str], int]] = dict
        self._seen: frozenset[tuple[str, str]] = frozenset()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        counts = self.counts()
        seen = self._seen = self._seen | counts.keys()
        gauge = GaugeMetricFamily(f"{NAMESPACE}_warnings", self._about, labels=["source", "class"])
        for pair in sorted(seen):
            gauge.add_metric(pair, counts.get(pair, 0))
        yield gauge


class WriteMetrics:
    """Metrics of writes to a cluster. Safe from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        _, counter = _makers(registry)
        self._events = counter("events_sent", "Kubernetes Events that the server took", ["reason"])
        self._unsent = counter("events_unsent", "Kubernetes Events that were refused", ["reason"])
        self._reaped = counter("pods_reaped", "Pods deleted by --reap-failed", ["cause"])
        self._reap_failures = counter("reap_failures", "Deletions that failed and are repeated")

    def event(self, reason: str, *, sent: bool) -> None:
        """Count an Event: taken by the server (``sent``), or else refused."""
        (self._events if sent else self._unsent).labels(reason).inc()

    def reaped(self, cause: str) -> None:
        """Count a pod that was deleted for ``cause``."""
        self._reaped.labels(cause).inc()

    def reap_failed(self) -> None:
        """Count a deletion that failed and is repeated."""
        self._reap_failures.inc()


def _makers(registry: CollectorRegistry) -> tuple[Callable[..., Gauge], Callable[..., Counter]]:
    return partial(Gauge, namespace=NAMESPACE, registry=registry), partial(
        Counter, namespace=NAMESPACE, registry=registry
    )


def _age(clock: Clock, at: float | None) -> float:
    return math.nan if at is None else max(0.0, clock.mono() - at)
