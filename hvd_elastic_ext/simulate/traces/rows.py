"""A trace: one row for each host that comes or goes, in order of time.

    time,host,event,notice,slots,kind,price
    0,a,up,,4,,0.35
    0,b,up,,4,,0.35
    1800,b,price,,,,0.4
    3600,b,down,120,,,
    5400,b,up,,4,,0.35

``time``: seconds from the start; ``1.5h`` and ``2d`` are times, too. Events: ``up``; ``down`` (the machine is
reclaimed, with ``notice`` seconds of notice, if any); ``lost`` (it vanishes, and its connections stay open);
``crash`` (one of its training processes fails);
``price`` (of a slot for an hour, from then on).
The trace ends with its last row. What a row at the very end says happens to no job.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS, name_error
from hvd_elastic_ext.io.user_files import read_text

EVENTS: Final = ("up", "down", "lost", "crash", "price")
COLUMNS: Final = ("time", "host", "event", "notice", "slots", "kind", "price")
NEEDED: Final = COLUMNS[:3]
DAY_S: Final = 86400.0
MAX_DAYS: Final = 366
"""Most days of a trace. A year of a small job takes a minute to simulate."""
MAX_ROWS: Final = 500_000
MAX_HOSTS: Final = 10_000
"""Most hosts, and most slots of them, that are there at once."""
MAX_SLOTS_AT_ONCE: Final = 100_000


@dataclass(frozen=True, slots=True)
class Row:
    """A row. ``at`` and ``notice`` are seconds. ``slots``, ``kind`` and ``price`` (of a slot for an hour, if it is
    known) are those of a host that comes up. The event ``price`` has only ``price``.
    """

    at: float
    host: str
    event: str
    notice: float = 0.0
    slots: int = 1
    kind: str = ""
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace. ``ends``: its end, in seconds from its start. ``slots``: the most slots that each host ever has.

    ``boots``: by host, the seconds that its processes boot, if known; None: longer than the host exists.
    """

    rows: tuple[Row, ...]
    ends: float
    slots: dict[str, int] = field(default_factory=dict)
    boots: dict[str, float | None] = field(default_factory=dict)

    def plays(self, row: Row) -> bool:
        """Whether a row happens to a job. One at the very end does not: it only says when the trace ends."""
        return row.at < self.ends


def whole(text: str, most: int) -> int | None:
    """Read a whole number from 0 to ``most``; None if it is something else."""
    text = text.lstrip("0") or text[-1:]  # Python converts no text of thousands of digits
    return int(text) if text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most else None


def text_of(path: Path) -> str:
    """Return the text of a file. Raises :class:`UsageError`."""
    return read_text(path, expected=f"give a CSV file of {','.join(NEEDED)}")


def brief(text: str) -> str:
    """Return a text from a file for a message: one short line."""
    text = text if len(text) <= 60 else f"{text[:59]}…"
    return text if text.isprintable() else repr(text)[1:-1]


def shown(text: str) -> str:
    """The same in quotes."""
    return repr(text if len(text) <= 60 else f"{text[:59]}…")


def read(path: Path) -> Trace:
    """Read a file. Raises :class:`UsageError` that names the line, and says how to write it."""
    return parsed(text_of(path), where=str(path))


def parsed(text: str, *, where: str) -> Trace:
    """Read the text of a trace. Raises :class:`UsageError`."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    if not lines:
        raise UsageError(f"{where}: is empty; begin it with the line {','.join(COLUMNS)}")
    header = [word.strip() for word in lines[0][1].split(",")]
    wrong = [name for name in header if name not in COLUMNS] or [name for name in NEEDED if name not in header]
    if wrong or len(set(header)) < len(header):
        what = (
            f"column {shown(wrong[0])} is {'missing' if wrong[0] in NEEDED else 'unknown'}"
            if wrong
            else "a column twice"
        )
        raise UsageError(f"{where}:{lines[0][0]}: {what}; begin it with the line {','.join(COLUMNS)}")
    rows = []
    for number, line in lines[1:]:
        try:
            words = [word.strip() for word in next(csv.reader([line]))]
            rows.append(_row(dict(zip(header, words, strict=len(words) > len(header)))))
        except (ValueError, csv.Error) as error:
            why = "more values than columns" if "argument" in str(error) else str(error)
            raise UsageError(f"{where}:{number}: {why}") from None
    trace = checked(rows, where=where, numbers=[number for number, _ in lines[1:]])
    if not trace.ends:
        raise UsageError(
            f"{where}: all its rows are at time 0, so it has no duration; add a row at its end, such as 1h,a,down"
        )
    return trace


def _row(values: dict[str, str]) -> Row:
    at, host, event = (values.get(name, "") for name in NEEDED)
    begun = durations.parse(at)
    if begun is None:
        raise ValueError(f"time {shown(at)} is not a time; write seconds from the start, such as 90, or 1.5h")
    if (problem := name_error(host)) is not None:
        raise ValueError(problem)
    if event not in EVENTS:
        raise ValueError(f"event {shown(event)} is not one of {', '.join(EVENTS)}")
    notice, slots = values.get("notice") or "0", values.get("slots") or "1"
    before = durations.parse(notice)
    if before is None:
        raise ValueError(f"notice {shown(notice)} is not a time; write seconds, such as 120, or leave it empty")
    if before and event != "down":
        raise ValueError(f"notice of a host that is {event}; only one that is down has any")
    count = whole(slots, MAX_SLOTS)
    if not count:
        raise ValueError(f"slots {shown(slots)}: write a whole number from 1 to {MAX_SLOTS}")
    return Row(begun, host, event, before, count, values.get("kind", ""), _price(event, values.get("price", "")))


def _price(event: str, text: str) -> float | None:
    price = durations.parse(text) if text[-1:].isdigit() else None
    if (text and (price is None or event not in ("up", "price"))) or (event == "price" and not text):
        raise ValueError(f"price {shown(text)} of a host that is {event}; write one such as 0.35 with up or price only")
    return price


def checked(rows: Sequence[Row], *, where: str, numbers: Sequence[int] = (), ends: float | None = None) -> Trace:
    """Return a trace of these rows. Raises :class:`UsageError` if a host that does not exist is removed, if time
    decreases, or if the trace is too large to be simulated."""
    if len(rows) > MAX_ROWS:
        raise UsageError(f"{where}: has {len(rows):,} rows; a trace has at most {MAX_ROWS:,}: give a part of it")
    there: dict[str, int] = {}
    slots: dict[str, int] = {}
    at, at_once = 0.0, 0
    for index, row in enumerate(rows):
        line = f"{where}:{numbers[index]}" if numbers else where
        if row.at < at:
            raise UsageError(f"{line}: time {row.at:g} is before {at:g}, that of the row above; sort rows by time")
        if (row.event == "up") == (row.host in there):
            state = "up already" if row.host in there else "not up"
            raise UsageError(f"{line}: {row.host} is {state}; leave the row out, or write what came before it")
        at = row.at
        if not max(at, row.notice) <= MAX_DAYS * DAY_S:
            raise UsageError(f"{line}: {_days(max(at, row.notice))}; a trace has at most {MAX_DAYS}: correct the time")
        if row.event == "up":
            there[row.host] = row.slots
            at_once += row.slots
            slots[row.host] = max(row.slots, slots.get(row.host, 0))
        elif row.event not in ("crash", "price"):
            at_once -= there.pop(row.host)
        if len(there) > MAX_HOSTS or at_once > MAX_SLOTS_AT_ONCE:
            raise UsageError(
                f"{line}: has {len(there):,} hosts with {at_once:,} slots at once; a trace has at most {MAX_HOSTS:,} "
                f"with {MAX_SLOTS_AT_ONCE:,}: give a part of it"
            )
    if not max(at, ends or 0.0) <= MAX_DAYS * DAY_S:
        raise UsageError(f"{where}: {_days(ends or 0.0)}; a trace has at most {MAX_DAYS}: give a part of it")
    if not rows:
        raise UsageError(f"{where}: has no row; write one of {','.join(COLUMNS)} for each host that comes or goes")
    return Trace(tuple(rows), max(at, ends or 0.0), slots)


def _days(seconds: float) -> str:
    days = seconds / DAY_S
    return f"lasts {days:,.0f} days" if days < 1e9 else f"lasts {days:.0e} days"


def written(rows: Iterable[Row]) -> str:
    """Return the text that :func:`parsed` reads."""
    lines = [",".join(COLUMNS)]
    for row in rows:
        up = row.event == "up"
        slots, notice = str(row.slots) if up else "", f"{row.notice:g}" if row.notice else ""
        price = "" if row.price is None else f"{row.price:g}"
        lines.append(f"{row.at:.12g},{row.host},{row.event},{notice},{slots},{row.kind if up else ''},{price}")
    return "\n".join(lines) + "\n"
