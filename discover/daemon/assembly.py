"""Makes the parts of the daemon from its settings."""

from __future__ import annotations

import logging

from discover.daemon.cluster_parts import KubeParts
from discover.daemon.loop import Daemon, DaemonState, EventQueue, Publishers, publication_of
from discover.daemon.once import Row, explain, observe_once, render
from discover.daemon.own_pod import ContainerWatch, InitContainerCheck
from discover.daemon.settings import FileSettings, KubernetesSettings, Settings, StaticSettings
from discover.metrics import Metrics
from discover.publish.files import HostsFile, Publisher, PublishFailed
from discover.publish.overlap import Overlap
from discover.publish.server import Health, LatestPublication, Routes, servers_at
from discover.reap.events import EventWriter
from discover.reap.reaper import Reaper
from discover.sources import FileSource, Source, StaticSource
from hvd_elastic_ext.core.clock import Clock, SystemClock

LOG = logging.getLogger("hvd-discover")


def source_of(settings: Settings, *, metrics: Metrics, clock: Clock) -> tuple[Source, KubeParts | None]:
    """Return the source and, for a cluster, its other parts. Raises :class:`UsageError` if they cannot be made."""
    match settings.source:
        case FileSettings() as file:
            return FileSource(file.watch, slots=file.slots), None
        case StaticSettings() as static:
            return StaticSource(static.hosts), None
        case KubernetesSettings() as cluster:
            parts = KubeParts(cluster, metrics=metrics, clock=clock)
            return parts.source, parts


def serve(settings: Settings, *, life: str, inbox: EventQueue, clock: Clock | None = None) -> int:
    """Run the daemon until ``inbox`` has a request to stop; return the exit code. Raises :class:`Permanent` errors.

    ``life`` names this run of the daemon.
    """
    clock = clock or SystemClock()
    vitals, metrics, board = Health(clock), Metrics(clock), LatestPublication()
    source, cluster = source_of(settings, metrics=metrics, clock=clock)
    files = _files(settings, metrics, cluster, clock=clock)
    beside: list[ContainerWatch | InitContainerCheck | EventWriter | Reaper] = []
    if cluster is not None:
        beside += cluster.own_pod_watch(inbox.end)
        beside += cluster.writers()
    outlets = Publishers([*files, board], metrics)
    routes = Routes(board, vitals=vitals, metrics=metrics)
    servers = servers_at(settings.outputs.listen, routes)

    def leaving() -> None:
        for each in beside:
            each.begin_stop()  # stop all of them at the same time, because each may wait for the server

    try:
        state = _own(files, life)
        if cluster is not None:
            cluster.source.resume(state.seniority)
        for server in servers:
            server.start()
            LOG.info("listening: %s", server.address)
        daemon = Daemon(
            source,
            outlets,
            state=state,
            vitals=vitals,
            metrics=metrics,
            clock=clock,
            next_event=inbox.next,
            changed=inbox.changed,
            leaving=leaving,
        )
        for each in beside:
            each.start()
        inbox.attend()
        return daemon.run()
    finally:
        for each in beside:
            each.stop()
        outlets.close()
        routes.close()
        for server in servers:
            server.close()


def look_once(settings: Settings, *, life: str) -> str:
    """Look once, publish, and return the result as text. Raises :class:`ElasticError` if one of them fails.

    ``life`` names this run.
    """
    clock = SystemClock()
    metrics = Metrics(clock)
    source, cluster = source_of(settings, metrics=metrics, clock=clock)
    files = _files(settings, metrics, cluster, clock=clock)
    try:
        state = _own(files, life)
        if cluster is not None:
            cluster.source.resume(state.seniority)
        seen = observe_once(source, explain=None if cluster is None else lambda: _rows(cluster), clock=clock)
        publication, _ = publication_of(state, seen.observation)
        for publisher in files:
            publisher.publish(publication)
    finally:
        for publisher in files:
            publisher.close()
    return render(publication, seen.rows, output=settings.output, wall=clock.wall())


def _rows(cluster: KubeParts) -> tuple[Row, ...]:
    latest = cluster.source.evaluation
    return () if latest is None else explain(latest.selection, latest.damping)


def _files(settings: Settings, metrics: Metrics, cluster: KubeParts | None, *, clock: Clock) -> list[Publisher]:
    overlap = None if cluster is None else Overlap(alive=cluster.source.still_there, clock=clock)
    return settings.outputs.files(wrote=metrics.writes.inc, overlap=overlap)


def _own(files: list[Publisher], life: str) -> DaemonState:
    """Become the owner of the hosts file; return the first state, with the order of the hosts in an earlier run."""
    for publisher in files:
        if isinstance(publisher, HostsFile):
            try:
                publisher.own()
            except PublishFailed as error:
                LOG.warning("publishing: %s", error)
            return DaemonState(life, seniority=publisher.published_before())
    return DaemonState(life)
