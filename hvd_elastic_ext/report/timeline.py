"""Put journal records of several processes on one time scale.

``mono`` orders and measures; ``t`` is for people and may jump. A field of a wrong type counts as absent.
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
from hvd_elastic_ext.core.json_text import finite_number

SLACK_S: Final = 1.0
"""How far a restarted launcher's first record may lie before the last one on the same clock."""

LONGEST_S: Final = 1e12
"""Clocks further from 0 are invalid: 30,000 years. This excludes NaN, and sums that overflow."""

number: Final = finite_number

LONGEST_TEXT: Final = 300
"""Characters kept of a text: a traceback must not flood the table."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A record and its time."""

    at: float
    """Seconds since the start of the journal."""
    clock: int
    """Which monotonic clock it is. It changes with a reboot, across which no time can be measured."""
    record: Record


def timeline(records: Iterable[Record]) -> tuple[Moment, ...]:
    """Order the records.

    A ``started`` far before the records ahead of it means a reboot between two launchers. The second one then follows
    at once, as the time between is unknown.
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
        if not abs(record.mono) < LONGEST_S:
            continue
        if not parts or (record.event == "started" and record.mono < newest - SLACK_S):
            parts.append([])
            newest = record.mono
        parts[-1].append(record)
        newest = max(newest, record.mono)
    return parts


def select(moments: Iterable[Moment], *events: str) -> tuple[Moment, ...]:
    """Return the moments of these events."""
    return tuple(moment for moment in moments if moment.record.event in events)


def typical_interval(steps: Sequence[float], disturbances: Sequence[float]) -> float:
    """Return the median seconds between adjacent steps without a disturbance in between; 0 if there are none."""
    intervals = [
        after - before
        for before, after in itertools.pairwise(steps)
        if bisect_right(disturbances, before) == bisect_right(disturbances, after)
    ]
    return statistics.median(intervals) if intervals else 0.0


def downtimes(resizes: Sequence[float], steps: Sequence[float], typical: float) -> tuple[float | None, ...]:
    """Return the seconds without training for each resize.

    That is the gap in the steps around it, less one typical step. Resizes in one gap share it: each has the part until
    the next one, so that the sum is the loss. None without a step before or after.
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


def whole(value: object) -> int | None:
    """Return a whole number, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**15 else None


def names(value: object) -> tuple[str, ...]:
    """Return the host names in a list or a mapping; empty for anything else."""
    if not isinstance(value, list | tuple | dict):
        return ()
    return tuple(text(item) for item in value if isinstance(item, str))


def text(value: object) -> str:
    """Return one line without control characters; empty for None."""
    if value is None:
        return ""
    line = str(value)
    if not line.isprintable():
        line = "".join(c if c.isprintable() else " " for c in line)
    line = line.strip()
    return line if len(line) <= LONGEST_TEXT else line[: LONGEST_TEXT - 1] + "…"


def values(record: Record) -> Mapping[str, Any]:
    """Return a worker's values of the training: epoch, batch, loss and so on."""
    given = record.get("values")
    return given if isinstance(given, dict) else {}
