"""``--once``: wait until there is something to see, and print it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from discover.common.source import Observation, Source, Unsettled
from discover.selection.explain import Row, as_json, as_table
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import SourceUnavailable
from hvd_elastic_ext.core.publication import Publication, to_json

TURN = 0.02
"""Seconds between two looks at a source that does not report changes."""


@dataclass(frozen=True, slots=True)
class OnceLimits:
    """In seconds. ``settle``: for a file to be written completely. ``listed``: for a cluster's first answer.
    ``probes``: for pods that wait to be added.
    """

    settle: float = 2.0
    listed: float = 30.0
    probes: float = 3.0


@dataclass(frozen=True, slots=True)
class OnceResult:
    """``rows`` is None for a source without pods."""

    observation: Observation
    rows: tuple[Row, ...] | None = None


def observe_once(
    source: Source, *, explain: Callable[[], Sequence[Row]] | None, clock: Clock, limits: OnceLimits = OnceLimits()
) -> OnceResult:
    """Look until there is a result. ``explain``: of a source of pods, which has to be started before it sees anything.

    Raises :class:`ElasticError` if there is none, or not in time.
    """
    if explain is None:
        return OnceResult(_settled(source, clock, threading.Event(), timeout=limits.settle))
    changed = threading.Event()
    source.start(changed.set)
    try:
        observation = _settled(source, clock, changed, timeout=limits.listed)
        until = clock.mono() + limits.probes
        while _waiting(rows := explain()) and (left := until - clock.mono()) > 0:
            clock.wait(changed, left)
            changed.clear()
            seen = source.read()
            observation = observation if isinstance(seen, Unsettled) else seen
        return OnceResult(observation, tuple(rows))
    finally:
        source.stop()


def render(publication: Publication, rows: Sequence[Row] | None, *, output: str, wall: float) -> str:
    """Return ``json`` or a ``table``: of all pods where there are pods, else of the hosts."""
    if output == "json":
        said = to_json(publication)
        if rows is not None:
            said = json.dumps({**json.loads(said), "pods": [as_json(row) for row in rows]}, separators=(",", ":"))
        return f"{said}\n"
    if rows is None:
        return hosts_table(publication)
    return as_table(rows, wall=wall) if rows else "no pods match\n"


def hosts_table(publication: Publication) -> str:
    width = max([len("HOST"), *(len(host.name) for host in publication.hosts)])
    lines = [f"{'HOST':<{width}}  SLOTS", *(f"{host.name:<{width}}  {host.slots:>5}" for host in publication.hosts)]
    lines += [f"departing: {d.host} ({d.reason})" for d in publication.departing]
    return "".join(f"{line}\n" for line in lines)


def _settled(source: Source, clock: Clock, changed: threading.Event, *, timeout: float) -> Observation:
    until = clock.mono() + timeout
    while isinstance(seen := source.read(), Unsettled):
        if clock.mono() > until:
            raise SourceUnavailable(seen.where, seen.why)
        clock.wait(changed, TURN)
        changed.clear()
    return seen


def _waiting(rows: Sequence[Row]) -> bool:
    return any(row.verdict == "waiting" for row in rows)
