"""Settings in, a running whole out: which part gets which."""

from __future__ import annotations

import logging

from discover.board import Board
from discover.companion import Companion
from discover.daemon import Daemon, Inbox
from discover.decide import Standing, publication_of
from discover.explain import FollowsPods
from discover.following import companion, kubernetes_source
from discover.metrics import Metrics
from discover.once import look, render
from discover.outlets import Outlets
from discover.overlap import OverlappingHostsFile
from discover.placement import PlaceCheck
from discover.publish import HostsFile, Publisher, PublishFailed, Script
from discover.routes import Routes
from discover.serve import Server
from discover.settings import FileSettings, KubernetesSettings, Outputs, Settings, StaticSettings
from discover.source import Source
from discover.sources.file import FileSource
from discover.sources.static import StaticSource
from discover.vitals import Vitals
from hvd_elastic_ext.core.clock import Clock, SystemClock

LOG = logging.getLogger("hvd-discover")


def source_of(settings: Settings, *, metrics: Metrics, clock: Clock) -> Source:
    """Make the source that was asked for. Raises :class:`UsageError` if it cannot be."""
    match settings.source:
        case FileSettings() as file:
            return FileSource(file.watch, slots=file.slots)
        case StaticSettings() as static:
            return StaticSource(static.hosts)
        case KubernetesSettings() as cluster:
            return kubernetes_source(cluster, metrics=metrics.of_cluster(), clock=clock)


def serve(settings: Settings, *, life: str, inbox: Inbox, clock: Clock | None = None) -> int:
    """Run the daemon until it is told to stop; return the exit code.

    Raises :class:`Permanent` errors for what cannot be served.
    """
    clock = clock or SystemClock()
    vitals, metrics, board = Vitals(clock), Metrics(clock), Board()
    source = source_of(settings, metrics=metrics, clock=clock)
    beside = _companion(settings, inbox, metrics=metrics, clock=clock)
    files = _files(settings.outputs, metrics, source, clock=clock)
    outlets = Outlets([*files, board], metrics)
    routes = Routes(board, vitals=vitals, metrics=metrics)
    server = None if settings.outputs.listen is None else Server(settings.outputs.listen, routes)
    try:
        standing = _own(files, life)
        _resume(source, standing)
        if server is not None:
            server.start()
            LOG.info("listening: %s", server.address)
        daemon = Daemon(
            source,
            outlets,
            standing=standing,
            vitals=vitals,
            metrics=metrics,
            clock=clock,
            next_event=inbox.next,
            changed=inbox.changed,
        )
        if beside is not None:
            beside.start()
        return daemon.run()
    finally:
        if beside is not None:
            beside.stop()
        outlets.close()
        routes.close()
        if server is not None:
            server.close()


def _companion(settings: Settings, inbox: Inbox, *, metrics: Metrics, clock: Clock) -> Companion | PlaceCheck | None:
    if not isinstance(settings.source, KubernetesSettings):
        return None
    return companion(settings.source, metrics=metrics.of_cluster(), clock=clock, end=inbox.end)


def look_once(settings: Settings, *, life: str) -> str:
    """Look, publish, and return the outcome as text. Raises :class:`ElasticError` if either fails."""
    clock = SystemClock()
    metrics = Metrics(clock)
    source = source_of(settings, metrics=metrics, clock=clock)
    files = _files(settings.outputs, metrics, source, clock=clock)
    try:
        standing = _own(files, life)
        _resume(source, standing)
        seen = look(source, clock=clock)
        publication = publication_of(standing, seen.sight)
        for publisher in files:
            publisher.publish(publication)
    finally:
        for publisher in files:
            publisher.close()
    return render(publication, seen.rows, output=settings.output, wall=clock.wall())


def _files(outputs: Outputs, metrics: Metrics, source: Source, *, clock: Clock) -> list[Publisher]:
    files: list[Publisher] = []
    if outputs.hosts_file is not None:
        hosts_file = HostsFile(outputs.hosts_file, wrote=metrics.wrote)
        if isinstance(source, FollowsPods):
            files.append(OverlappingHostsFile(hosts_file, alive=source.still_there, clock=clock))
        else:
            files.append(hosts_file)
        if outputs.script is not None:
            files.append(Script(outputs.script, hosts_file=hosts_file.path, wrote=metrics.wrote))
    return files


def _resume(source: Source, standing: Standing) -> None:
    if isinstance(source, FollowsPods):
        source.resume(standing.seniority)


def _own(files: list[Publisher], life: str) -> Standing:
    """Take the hosts file, and from it the order in which an earlier life saw the hosts come."""
    for publisher in files:
        if isinstance(publisher, HostsFile | OverlappingHostsFile):
            try:
                publisher.own()
            except PublishFailed as error:
                LOG.warning("publishing: %s", error)
            return Standing(life, seniority=publisher.standing())
    return Standing(life)
