"""From journal lines, in whatever order several processes wrote them, to moments on one scale.

Only ``mono`` orders and measures; ``t`` is for people and may jump. Nothing a
journal contains is an error here: a field of the wrong kind counts as absent.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hvd_elastic_ext.core.journal import Record

SLACK_S: Final = 1.0
"""How far a restarted launcher's first line may lie before the last line on the same clock."""

LONGEST_TEXT: Final = 300
"""Characters kept of any text from a journal; a traceback put in as a reason must not drown the table."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A record and when it happened: ``at`` seconds since the journal began.

    ``clock`` counts monotonic clocks: it differs between moments that lie on
    both sides of a reboot, between which no time can be measured.
    """

    at: float
    clock: int
    record: Record


def timeline(records: Iterable[Record]) -> tuple[Moment, ...]:
    """Put records in the order in which they happened.

    A ``started`` far before what came ahead of it means that the machine was
    rebooted between two launchers: the second then follows the first at once,
    as how long the machine was away is not known.
    """
    moments: list[Moment] = []
    end = 0.0
    for clock, part in enumerate(_clocks(records)):
        ordered = sorted(part, key=lambda record: record.mono)
        begin = ordered[0].mono
        moments += [Moment(end + record.mono - begin, clock, record) for record in ordered]
        end = moments[-1].at
    return tuple(moments)


def _clocks(records: Iterable[Record]) -> list[list[Record]]:
    parts: list[list[Record]] = []
    newest = -math.inf
    for record in records:
        if not math.isfinite(record.mono):
            continue
        if not parts or (record.event == "started" and record.mono < newest - SLACK_S):
            parts.append([])
            newest = record.mono
        parts[-1].append(record)
        newest = max(newest, record.mono)
    return parts


def of(moments: Iterable[Moment], *events: str) -> tuple[Moment, ...]:
    """Only the moments of these events."""
    return tuple(moment for moment in moments if moment.record.event in events)


def typical_interval(steps: Sequence[float], disturbances: Sequence[float]) -> float:
    """Median seconds between neighbouring steps with no disturbance in between; 0 where there are none."""
    intervals = [
        after - before
        for before, after in itertools.pairwise(steps)
        if bisect_right(disturbances, before) == bisect_right(disturbances, after)
    ]
    return statistics.median(intervals) if intervals else 0.0


def downtimes(resizes: Sequence[float], steps: Sequence[float], typical: float) -> tuple[float | None, ...]:
    """How long training stood still for each resize, in seconds.

    That is the gap in the steps around it, less one typical step. Resizes that
    share a gap share its time: each has it until the next one came, so that the
    sum is what was lost. None where there is no step before or after.
    """
    shares: list[float | None] = []
    for index, at in enumerate(resizes):
        place = bisect_right(steps, at)
        if place in (0, len(steps)):
            shares.append(None)
            continue
        end = steps[place]
        begin = min(steps[place - 1] + typical, end)
        first = index == 0 or resizes[index - 1] < steps[place - 1]
        last = index + 1 == len(resizes) or resizes[index + 1] >= end
        lower = begin if first else min(max(at, begin), end)
        upper = end if last else min(max(resizes[index + 1], begin), end)
        shares.append(upper - lower)
    return tuple(shares)


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def whole(value: object) -> int | None:
    """A whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**15 else None


def names(value: object) -> tuple[str, ...]:
    """Host names out of a list or a mapping; empty for anything else."""
    if not isinstance(value, list | tuple | dict):
        return ()
    return tuple(text(item) for item in value if isinstance(item, str))


def text(value: object) -> str:
    """One line that is safe on a terminal; empty for None."""
    if value is None:
        return ""
    line = "".join(c if c.isprintable() else " " for c in str(value)).strip()
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…"


def values(record: Record) -> Mapping[str, Any]:
    """What a worker's line says of the training: epoch, batch, loss and so on."""
    given = record.get("values")
    return given if isinstance(given, dict) else {}
