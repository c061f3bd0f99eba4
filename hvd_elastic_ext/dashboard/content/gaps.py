"""When a job made no steps, so that a line over time is broken there. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

from hvd_elastic_ext.report.series import Loss
from hvd_elastic_ext.report.timeline import Moment, select, whole

STOPS: Final = ("resized", "slept")
AT_A_STOP, AT_ANY_TIME = 3.0, 10.0
"""A pause is so many times as long as steps around it take: where the world changed or slept, and elsewhere."""
NEAR: Final = 5
"""Steps on each side that tell how long one takes there."""
SHORTEST_PAUSE_S: Final = 0.5
SHORTEST_S: Final = 0.02
"""Of a part of a bin."""


def gaps(moments: Sequence[Moment]) -> list[tuple[float, float]]:
    """From the last step before each pause to the first one after it, in order.

    Steps that were made while no launcher was there are told late: that is no pause.
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
        return False  # nearly all are decided here, at little cost
    sides = paces[max(0, place - NEAR) : place], paces[place + 1 : place + 1 + NEAR]
    near = max((statistics.median(side) for side in sides if side), default=None)
    return stopped if near is None else paces[place] > (AT_A_STOP if stopped else AT_ANY_TIME) * near


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
