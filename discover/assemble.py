"""Settings in, a running whole out: which part gets which."""

from __future__ import annotations

import logging
import time

from discover.board import Board
from discover.daemon import Daemon, Inbox
from discover.decide import Standing, publication_of
from discover.metrics import Metrics
from discover.outlets import Outlets
from discover.publish import HostsFile, Publisher, PublishFailed, Script
from discover.routes import Routes
from discover.serve import Server
from discover.settings import FileSettings, Outputs, Settings
from discover.source import Sight, Source, Unsettled
from discover.sources.file import FileSource
from discover.sources.static import StaticSource
from discover.vitals import Vitals
from hvd_elastic_ext.core.clock import Clock, SystemClock
from hvd_elastic_ext.core.errors import SourceUnavailable
from hvd_elastic_ext.core.publication import Publication, to_json

LOG = logging.getLogger("hvd-discover")

ONCE_PATIENCE = 2.0
"""Seconds that ``--once`` waits for a file to be written to its end."""


def source_of(settings: Settings) -> Source:
    source = settings.source
    if isinstance(source, FileSettings):
        return FileSource(source.watch, slots=source.slots)
    return StaticSource(source.hosts)


def serve(settings: Settings, *, life: str, inbox: Inbox, clock: Clock | None = None) -> int:
    """Run the daemon until it is told to stop; return the exit code.

    Raises :class:`Permanent` errors for what cannot be served.
    """
    clock = clock or SystemClock()
    vitals, metrics, board = Vitals(clock), Metrics(clock), Board()
    files = _files(settings.outputs, metrics)
    outlets = Outlets([*files, board], metrics)
    routes = Routes(board, vitals=vitals, metrics=metrics)
    server = None if settings.outputs.listen is None else Server(settings.outputs.listen, routes)
    try:
        standing = _own(files, life)
        if server is not None:
            server.start()
            LOG.info("listening: %s", server.address)
        daemon = Daemon(
            source_of(settings),
            outlets,
            standing=standing,
            vitals=vitals,
            metrics=metrics,
            clock=clock,
            next_event=inbox.next,
            changed=inbox.changed,
        )
        return daemon.run()
    finally:
        outlets.close()
        routes.close()
        if server is not None:
            server.close()


def look_once(settings: Settings, *, life: str) -> str:
    """Look, publish, and return the outcome as text. Raises :class:`ElasticError` if either fails."""
    files = _files(settings.outputs, Metrics(SystemClock()))
    try:
        standing = _own(files, life)
        publication = publication_of(standing, _settled(source_of(settings)))
        for publisher in files:
            publisher.publish(publication)
    finally:
        for publisher in files:
            publisher.close()
    return f"{to_json(publication)}\n" if settings.output == "json" else table(publication)


def _files(outputs: Outputs, metrics: Metrics) -> list[Publisher]:
    files: list[Publisher] = []
    if outputs.hosts_file is not None:
        hosts_file = HostsFile(outputs.hosts_file, wrote=metrics.wrote)
        files.append(hosts_file)
        if outputs.script is not None:
            files.append(Script(outputs.script, hosts_file=hosts_file.path, wrote=metrics.wrote))
    return files


def _own(files: list[Publisher], life: str) -> Standing:
    """Take the hosts file, and from it the order in which an earlier life saw the hosts come."""
    for publisher in files:
        if isinstance(publisher, HostsFile):
            try:
                publisher.own()
            except PublishFailed as error:
                LOG.warning("publishing: %s", error)
            return Standing(life, seniority=publisher.standing())
    return Standing(life)


def _settled(source: Source) -> Sight:
    deadline = time.monotonic() + ONCE_PATIENCE
    while isinstance(seen := source.read(), Unsettled):
        if time.monotonic() > deadline:
            raise SourceUnavailable(seen.where, seen.why)
        time.sleep(0.02)
    return seen


def table(publication: Publication) -> str:
    """Lay a publication out for people."""
    width = max([len("HOST"), *(len(host.name) for host in publication.hosts)])
    lines = [f"{'HOST':<{width}}  SLOTS", *(f"{host.name:<{width}}  {host.slots:>5}" for host in publication.hosts)]
    lines += [f"departing: {d.host} ({d.reason})" for d in publication.departing]
    return "".join(f"{line}\n" for line in lines)
