"""Times without steps, where lines of a chart are interrupted. Pure.

A line drawn across a pause would claim steps that nobody did, and a bin that holds a pause would show training as slow.
So points are broken there, and bins are cut to the time in which steps were done.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Final

from hvd_elastic_ext.report.series import Loss
from hvd_elastic_ext.report.timeline import Moment, select, whole

STOPS: Final = ("resized", "slept")
AT_A_STOP, AT_ANY_TIME = 3.0, 10.0
"""The time between two steps is a pause if it is this many times as long as for the steps beside it: where the world
changed or slept, and elsewhere."""
NEAR: Final = 5
"""Number of steps on each side from which the usual step time is taken."""
SHORTEST_PAUSE_S: Final = 0.5
SHORTEST_S: Final = 0.02
"""Seconds of the shortest part of a bin."""


def gaps(moments: Sequence[Moment]) -> list[tuple[float, float]]:
    """Return each pause from the last step before it to the first step after it, in order. Steps done without a
    launcher are reported late; this is not a pause.
    """
    pairs: list[tuple[float, float, bool]] = []
    paces: list[float] = []
    before, between = None, set[str]()
    for moment in select(moments, "stepped", "started", *STOPS):
        if moment.record.event != "stepped":
            between.add(moment.record.event)
            continue
        if before is not None and between != {"started"}:
            pairs.append((before.at, moment.at, bool(between)))
            paces.append((moment.at - before.at) / _done(before, moment))
        before, between = moment, set()
    return [
        (begin, end)
        for place, (begin, end, stopped) in enumerate(pairs)
        if end - begin >= SHORTEST_PAUSE_S and _is_pause(paces, place, stopped=stopped)
    ]


def _is_pause(paces: Sequence[float], place: int, *, stopped: bool) -> bool:
    usual = min((*paces[max(0, place - 1) : place], *paces[place + 1 : place + 2]), default=0.0)
    if paces[place] <= AT_A_STOP * usual:
        return False  # decides most cases at little cost
    sides = paces[max(0, place - NEAR) : place], paces[place + 1 : place + 1 + NEAR]
    near = max((statistics.median(side) for side in sides if side), default=None)
    return stopped if near is None else paces[place] > (AT_A_STOP if stopped else AT_ANY_TIME) * near


def broken(points: Iterable[Loss], pauses: Sequence[tuple[float, float]]) -> list[tuple[float, float | None]]:
    """Return the points, with a point without value in each pause between two of them."""
    line: list[tuple[float, float | None]] = []
    place = 0
    for point in points:
        while place < len(pauses) and pauses[place][1] <= point.at:
            begin, end = pauses[place]
            if line and line[-1][0] <= begin:
                line.append(((begin + end) / 2, None))
            place += 1
        line.append((point.at, point.loss))
    return line


def trained(bins: Iterable[tuple[float, float, float]], pauses: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return bins ``(at, width, value)``, cut to the parts in which steps were done, with the throughput of that time.
    A part includes the step that ends a pause, so its value is limited to that of the whole bins beside it.
    """
    made = [(value, width, _parts(at, at + width, pauses)) for at, width, value in bins]
    times = [sum(length for _, length in parts) for _, _, parts in made]
    unbroken = [
        value if value > 0 and time > width - SHORTEST_S else 0.0
        for (value, width, _), time in zip(made, times, strict=True)
    ]
    before, after = _nearest(unbroken), _nearest(unbroken[::-1])[::-1]
    pieces: list[list[float]] = []
    for place, (value, width, parts) in enumerate(made):
        if value > 0 and parts:
            fastest = max(before[place], after[place]) or math.inf
            value = max(value, min(value * width / times[place], fastest))
            pieces += [[at, length, value] for at, length in parts]
    return pieces


def _parts(begin: float, end: float, pauses: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the parts of a time that are outside pauses, as beginnings and lengths."""
    parts = []
    for pause in pauses[bisect_right(pauses, begin, key=itemgetter(1)) :]:
        if pause[0] >= end:
            break
        parts.append((begin, pause[0] - begin))
        begin = pause[1]
    return [part for part in [*parts, (begin, end - begin)] if part[1] > SHORTEST_S]


def _nearest(values: Sequence[float]) -> list[float]:
    """Return, for each place, the newest value that is not None."""
    nearest: list[float] = []
    for value in values:
        nearest.append(value or (nearest[-1] if nearest else 0.0))
    return nearest


def _done(before: Moment, after: Moment) -> int:
    """Return how many steps a record represents: only a sample is kept."""
    one, other = whole(before.record.get("step")), whole(after.record.get("step"))
    return 1 if one is None or other is None else max(1, other - one)
