"""Traces of ``time,count``, as the authors of Bamboo (NSDI '23) keep them in ``uclasystem/bamboo``, ``doc/data``.

The header ``time,count`` may be absent. Of several counts for one time, the last one counts. Bamboo's files have whole
seconds; files whose names end in ``_scaled`` have hours with three decimals.
"""

from __future__ import annotations

import re
from typing import Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces.published import NOTHING, UNITS, Assumed, Level, Levels, Pool, levels
from hvd_elastic_ext.simulate.traces.rows import MAX_HOSTS, shown, whole

HEADER = "time,count"
_THREE_DECIMALS: Final = re.compile(r"[0-9]+\.[0-9]{3}")


def is_counts(text: str) -> bool:
    """Whether a text is a trace of counts, by its first line that is not a comment."""
    first = next((line for line in text.splitlines() if line.strip() and line[0] != "#"), "")
    words = [word.strip() for word in first.split(",")]
    return words == HEADER.split(",") or (len(words) == 2 and None not in map(durations.parse, words))


def parsed(text: str, *, where: str, assumed: Assumed = NOTHING) -> Levels:
    """Read the text of a trace of counts. Raises :class:`UsageError` that names the line."""
    assumed.only(("unit",), where=where, what="a file of time,count")
    found: dict[float, int] = {}
    last, hours = 0.0, True
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in line.split(",")]
        if not line.strip() or line[0] == "#" or (not found and words == HEADER.split(",")):
            continue
        at = durations.parse(words[0]) if len(words) == 2 else None
        count = whole(words[1], MAX_HOSTS) if len(words) == 2 else None
        if at is None or count is None:
            raise UsageError(
                f"{where}:{number}: {shown(line.strip())} is not a time and a count; write them as 3600,12, with at "
                f"most {MAX_HOSTS:,} hosts"
            )
        at *= UNITS[assumed.unit or "s"] if words[0][-1:].isdigit() else 1.0
        if at < last:
            raise UsageError(f"{where}:{number}: time {words[0]} is before that of a row above; sort rows by time")
        hours = hours and _THREE_DECIMALS.fullmatch(words[0]) is not None
        last, found[at] = at, count
    if found and hours and not assumed.unit:
        raise UsageError(f"{where}: are its times hours, as in Bamboo's scaled files? add --assume unit=h, or unit=s")
    pool = Pool(slots=assumed.slots or 1)
    return levels((Level(at, pool, count) for at, count in found.items()), where=where, assumed=assumed)
