"""Traces that tell only how many hosts there are: ``time,count``, as Bamboo (NSDI '23) has published them.

Which host goes, and whether that was announced, is drawn from the seed. A host that comes has a new name. Such a file
has the header ``time,count``, or none; the newest count of a time holds. The trace begins with its first host.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces.rows import Row, Trace, checked, seconds

HEADER = "time,count"


def is_counts(text: str) -> bool:
    """Whether a text is a trace of counts: by its first line that is no comment."""
    first = next((line for line in text.splitlines() if line.strip() and line[0] != "#"), "")
    words = [word.strip() for word in first.split(",")]
    return words == HEADER.split(",") or (len(words) == 2 and None not in map(seconds, words))


@dataclass(frozen=True, slots=True)
class Counts:
    """``notice``: seconds before a host goes, but for the share ``untold``. ``slots``: of each host."""

    counts: tuple[tuple[float, int], ...]
    where: str
    notice: float = 0.0
    untold: float = 0.0
    slots: int = 1

    def trace(self, seed: int) -> Trace:
        """The trace of a seed."""
        return checked(sorted(self._rows(seed), key=lambda row: row.at), where=self.where, ends=self.counts[-1][0])

    def _rows(self, seed: int) -> Iterator[Row]:
        chance = random.Random(f"counts {seed}")  # noqa: S311 a simulation
        there: list[str] = []
        came = 0
        for at, count in self.counts:
            while len(there) > count:
                host = there.pop(chance.randrange(len(there)))
                told = chance.random() >= self.untold
                yield Row(at, host, "down", self.notice if told else 0.0)
            while len(there) < count:
                came += 1
                there.append(f"h{came}")
                yield Row(at, there[-1], "up", slots=self.slots)


def parsed(text: str, *, where: str, notice: float = 0.0, untold: float = 0.0, slots: int = 1) -> Counts:
    """Read the text of a trace of counts. Raises :class:`UsageError` that names the line."""
    found: dict[float, int] = {}
    last = 0.0
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in line.split(",")]
        if not line.strip() or line[0] == "#" or (not found and words == HEADER.split(",")):
            continue
        at = seconds(words[0]) if len(words) == 2 else None
        if at is None or not words[1].isdecimal() or int(words[1]) > 100_000:
            raise UsageError(f"{where}:{number}: {line.strip()[:80]!r} is no time and count; write them as 3600,12")
        if at < last:
            raise UsageError(
                f"{where}:{number}: time {at:g} is before {last:g}, that of a row above; sort rows by time"
            )
        last, found[at] = at, int(words[1])
    if not any(found.values()):
        raise UsageError(f"{where}: tells of no host; write lines of {HEADER}")
    first = next(at for at, count in found.items() if count)
    return Counts(
        tuple((at - first, count) for at, count in found.items() if at >= first), where, notice, untold, slots
    )
