"""How often a wait is told: after 4, 10, 30 and 60 s, then each minute. Pure.

A wait for another reason is told once that has lasted for :data:`NEWS_S`, though never within :data:`GAP_S` of the line
before. Each reason has its own pace, so a wait that goes back and forth between two reasons gives no line for each
change.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Final

MARKS_S: Final = (4.0, 10.0, 30.0)
"""When the first lines about a wait are due, in seconds since its beginning."""


EVERY_S: Final = 60.0
"""Time between two lines after these."""


GAP_S: Final = 4.0
"""Least time between two lines about one wait."""


NEWS_S: Final = 1.0
"""How long a wait for another reason lasts before it is told: most changes lead to the end of the wait."""


CLOSE_S: Final = 3.0
"""A line this short before another one is due replaces it."""


MOST_REASONS: Final = 32
"""Most reasons of one wait whose lines are remembered."""


_BRACKETS: Final = re.compile(r"\([^()]*\)")


_NUMBER: Final = re.compile(r"\d+(\.\d+)?")


def next_at(since: float, said: float | None, *, first_s: float = MARKS_S[0], most_s: float = EVERY_S) -> float:
    """When the next line is due about a wait that began at ``since`` and was told last at ``said`` (all mono).

    ``first_s``: when the first one is due. ``most_s``: the longest time between two lines; above :data:`EVERY_S` each
    line comes when the wait has lasted twice as long.
    """
    if said is None:
        return since + first_s
    lasted_s = said - since
    if most_s > EVERY_S and lasted_s >= EVERY_S:
        return said + min(lasted_s, most_s)
    marks = (mark for mark in MARKS_S if mark > lasted_s + CLOSE_S)
    mark = next(marks, EVERY_S * ((lasted_s + CLOSE_S) // EVERY_S + 1))
    return since + mark if most_s >= EVERY_S else min(since + mark, said + max(GAP_S, most_s))


def is_due(
    since: float, said: float | None, now: float, *, first_s: float = MARKS_S[0], most_s: float = EVERY_S
) -> bool:
    """Whether a line is due at ``now``; the others as in :func:`next_at`."""
    return now >= next_at(since, said, first_s=first_s, most_s=most_s)


def reason_of(text: str) -> str:
    """What lines about one reason share: ``text`` without numbers, without what is in brackets, and without lists."""
    while text != (text := _BRACKETS.sub("", text)):
        pass  # brackets within brackets
    parts = (itertools.takewhile(_is_no_list, part.split()) for part in _NUMBER.sub("#", text).split(";"))
    return ";".join(map(" ".join, parts))


def _is_no_list(word: str) -> bool:
    """Whether no list of names begins with ``word``, such as "a," or "b[0]"."""
    return not {",", "["} & set(word)


@dataclass(slots=True)
class Lines:
    """The lines about one wait that began at ``since`` (mono): which reasons were told, and when.

    ``first_s``: when the first line is due, in seconds since then. ``news_s``: how long another reason lasts before it
    is told.
    """

    since: float
    first_s: float = MARKS_S[0]
    news_s: float = NEWS_S
    last: float | None = None
    """When the last line came, about whatever reason (mono)."""
    told: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By reason, from when on its pace counts, and when it was told last (mono)."""
    present: tuple[str, float] = ("", 0.0)
    """The reason at the last look, and since when it has been that one (mono)."""

    def next_at(self, text: str = "", *, most_s: float = EVERY_S) -> float:
        """When the next line is due (mono), as long as the wait is for what ``text`` says."""
        if self.last is None:
            return self.since + self.first_s
        reason = reason_of(text)
        since, said = self.told.get(reason, (self.last, None))
        if said is not None:
            return max(self.last + GAP_S, next_at(since, said, most_s=most_s))
        new, at = self.present
        return max(self.last + GAP_S, at + self.news_s if reason == new else self.last)

    def due(self, now: float, text: str = "", *, most_s: float = EVERY_S) -> bool:
        """Whether to tell ``text`` at ``now`` (mono). If so, it counts as told."""
        reason = reason_of(text)
        if reason != self.present[0]:
            self.present = reason, now
        if now < self.next_at(text, most_s=most_s):
            return False
        since = self.since if self.last is None else now - MARKS_S[0]
        since, _ = self.told.pop(reason, (since, now))
        while len(self.told) >= MOST_REASONS:
            del self.told[next(iter(self.told))]
        self.told[reason], self.last = (since, now), now
        return True


WAIT: Final = {"wait": True}
"""Marks a line of the log about a wait. A terminal does not show it where its status line says the same."""
