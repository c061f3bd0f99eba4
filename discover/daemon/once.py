"""``--once``: waits until the source shows hosts or pods, and prints them, each pod with its verdict and the reason."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from discover.sources import Observation, Source, Unsettled
from discover.verdicts.damping import DampingResult
from discover.verdicts.verdicts import Grade, Selection, Verdict
from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.errors import SourceUnavailable
from hvd_elastic_ext.core.json_text import to_text
from hvd_elastic_ext.core.publication import Publication, to_json

TURN = 0.02
"""Seconds between two looks at a source that does not report changes."""


@dataclass(frozen=True, slots=True)
class OnceLimits:
    """How long to wait, in seconds."""

    settle: float = 2.0
    """Until a file is written completely."""
    listed: float = 30.0
    """For the first answer of a cluster."""
    probes: float = 3.0
    """For pods that wait to be added."""


@dataclass(frozen=True, slots=True)
class OnceResult:
    """The result of one look."""

    observation: Observation
    rows: tuple[Row, ...] | None = None
    """None for a source without pods."""


def observe_once(
    source: Source, *, explain: Callable[[], Sequence[Row]] | None, clock: Clock, limits: OnceLimits = OnceLimits()
) -> OnceResult:
    """Look at the source until there is a result. ``explain`` returns the rows of a source of pods, and is None for
    another source. A source of pods is started here, because it sees nothing before.

    Raises :class:`ElasticError` if there is no result, or none in time.
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
    """Return text in the form ``output``, ``json`` or ``table``. A table has all pods, or the hosts if ``rows`` is
    None. ``wall``: now, in Unix seconds.
    """
    if output == "json":
        text = to_json(publication)
        if rows is not None:
            text = to_text({**json.loads(text), "pods": [as_json(row) for row in rows]})
        return f"{text}\n"
    if rows is None:
        return hosts_table(publication)
    return pods_table(rows, wall=wall) if rows else "no pods match\n"


def hosts_table(publication: Publication) -> str:
    """Return a table of the usable hosts and their slots, and a line for each departing host."""
    from hvd_elastic_ext.io import tables  # a daemon needs no rich

    rows = [(host.name, str(host.slots)) for host in publication.hosts]
    departing = "".join(f"departing: {each.host} ({each.reason})\n" for each in publication.departing)
    return tables.plain(("HOST", "SLOTS"), rows, right=("SLOTS",)) + departing


def pods_table(rows: Sequence[Row], *, wall: float) -> str:
    """Return a table with a line for each pod. ``wall``: now, in Unix seconds. Namespaces are shown only if there are
    several.
    """
    from hvd_elastic_ext.io import tables  # a daemon needs no rich

    spaces = {row.pod.partition("/")[0] for row in rows}
    lines = []
    for row in rows:
        pod = row.pod.partition("/")[2] if len(spaces) == 1 else row.pod
        slots = "-" if row.slots is None else str(row.slots)
        lines.append((pod, row.host or "-", slots, row.node or "-", row.verdict, _when(row, wall) + row.reason))
    return tables.plain(("POD", "HOST", "SLOTS", "NODE", "VERDICT", "REASON"), lines)


def _when(row: Row, wall: float) -> str:
    if row.deadline is None or row.verdict != "leaving":
        return ""
    left = row.deadline - wall
    return f"in {left:.0f} s: " if left > 0 else "now: "


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


# --- a row for each pod


@dataclass(frozen=True, slots=True)
class Row:
    """One pod."""

    pod: str
    verdict: str
    """See :func:`verdict_word`."""
    reason: str
    published: bool
    """As a usable host."""
    host: str = ""
    slots: int | None = None
    node: str = ""
    uid: str = ""
    deadline: float | None = None
    """In Unix seconds."""
    advisory: str = ""


def explain(selection: Selection, damping: DampingResult) -> tuple[Row, ...]:
    """Return a row for each pod, in order of the pods' keys."""
    published = damping.state.published
    return tuple(
        _row(verdict, note=damping.notes.get(verdict.pod.key, ""), published=verdict.pod.uid in published)
        for verdict in selection.verdicts
    )


def verdict_word(verdict: Verdict, *, published: bool) -> str:
    """Return the word for a verdict.

    ``usable``: published. ``waiting``: usable, but not published yet. ``warned``: usable, but not added because of an
    advisory. ``leaving``: it has a notice. ``silent``: its node sends no reports. ``held``: silent, but still
    published. ``gone``: it has ended after a notice or because of it. ``unfit``: no host.
    """
    if verdict.grade is Grade.USABLE:
        return "usable" if published else "warned" if verdict.advisory else "waiting"
    if verdict.grade is Grade.ABSENT:
        return "held" if published else "silent"
    return str(verdict.grade.value)


def _row(verdict: Verdict, *, note: str, published: bool) -> Row:
    host, pod = verdict.host, verdict.pod
    beside = verdict.advisory if published else ""  # else the note has it
    return Row(
        pod=str(pod.key),
        verdict=verdict_word(verdict, published=published),
        reason="; ".join(filter(None, [verdict.reason, beside, note])),
        published=published,
        host="" if host is None else host.name,
        slots=None if host is None else host.slots,
        node=pod.node,
        uid=pod.uid,
        deadline=verdict.deadline,
        advisory=verdict.advisory,
    )


def as_json(row: Row) -> dict[str, Any]:
    """Return a row as a JSON object, without empty and unknown values."""
    return {key: value for key, value in asdict(row).items() if value not in ("", None)}
