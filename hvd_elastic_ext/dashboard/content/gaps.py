"""When a job made no steps, so that a line over time is broken there. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from hvd_elastic_ext.report.series import SHORTEST_STEP_S, Loss
from hvd_elastic_ext.report.timeline import Moment, select, whole

STOPS: Final = ("started", "resized", "slept", "finished")
AT_A_STOP, AT_ANY_TIME = 3.0, 10.0
"""A pause is so many times as long as its steps usually take: where the world changed or slept, and elsewhere."""
SHORTEST_S: Final = 0.02
"""Of a part of a bin."""


def gaps(moments: Sequence[Moment]) -> list[tuple[float, float]]:
    """From the last step before each pause to the first one after it, in order."""
    told = select(moments, "stepped", *STOPS)
    pairs: list[tuple[float, float, int, bool]] = []
    before, stopped = None, False
    for moment in told:
        if moment.record.event != "stepped":
            stopped = True
            continue
        if before is not None:
            pairs.append((before.at, moment.at, _done(before, moment), stopped))
        before, stopped = moment, False
    pace = [(after - earlier) / done for earlier, after, done, stop in pairs if not stop]
    if not pace:
        return [(earlier, after) for earlier, after, _, stop in pairs if stop]
    usual = max(statistics.median(pace), SHORTEST_STEP_S)
    return [
        (earlier, after)
        for earlier, after, done, stop in pairs
        if after - earlier > (AT_A_STOP if stop else AT_ANY_TIME) * done * usual
    ]


def broken(points: Iterable[Loss], pauses: Sequence[tuple[float, float]]) -> list[tuple[float, float | None]]:
    """The points with one of no value in each pause between two of them."""
    found: list[tuple[float, float | None]] = []
    place = 0
    for point in points:
        while place < len(pauses) and pauses[place][1] <= point.at:
            begin, end = pauses[place]
            if found and found[-1][0] <= begin:
                found.append(((begin + end) / 2, None))
            place += 1
        found.append((point.at, point.loss))
    return found


def trained(bins: Iterable[tuple[float, float, float]], pauses: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Bins, ``(at, width, value)``, as the parts of them in which steps were made."""
    found: list[list[float]] = []
    place = 0
    for at, width, value in bins:
        if value <= 0:
            continue
        begin, end = at, at + width
        while place < len(pauses) and pauses[place][1] <= begin:
            place += 1
        following = place
        while following < len(pauses) and pauses[following][0] < end:
            pause = pauses[following]
            if pause[0] - begin > SHORTEST_S:
                found.append([begin, pause[0] - begin, value])
            begin, following = pause[1], following + 1
        if end - begin > SHORTEST_S:
            found.append([begin, end - begin, value])
    return found


def _done(before: Moment, after: Moment) -> int:
    """How many steps a record stands for: only some are kept."""
    one, other = whole(before.record.get("step")), whole(after.record.get("step"))
    return 1 if one is None or other is None else max(1, other - one)
