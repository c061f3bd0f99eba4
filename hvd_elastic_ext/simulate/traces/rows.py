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
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core import durations
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS, name_error

EVENTS: Final = ("up", "down", "lost", "crash", "price")
COLUMNS: Final = ("time", "host", "event", "notice", "slots", "kind", "price")
NEEDED: Final = COLUMNS[:3]


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


def text_of(path: Path) -> str:
    """Return the text of a file. Raises :class:`UsageError`."""
    try:
        content = path.read_bytes()
        return (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text"
        raise UsageError(f"{path}: cannot be read: {why}; give a CSV file of {','.join(NEEDED)}") from None


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
        what = f"column {wrong[0]!r} is {'missing' if wrong[0] in NEEDED else 'unknown'}" if wrong else "a column twice"
        raise UsageError(f"{where}:{lines[0][0]}: {what}; begin it with the line {','.join(COLUMNS)}")
    rows = []
    for number, line in lines[1:]:
        words = [word.strip() for word in next(csv.reader([line]))]
        try:
            rows.append(_row(dict(zip(header, words, strict=len(words) > len(header)))))
        except ValueError as error:
            why = "more values than columns" if "argument" in str(error) else str(error)
            raise UsageError(f"{where}:{number}: {why}") from None
    return checked(rows, where=where, numbers=[number for number, _ in lines[1:]])


def _row(values: dict[str, str]) -> Row:
    at, host, event = (values.get(name, "") for name in NEEDED)
    begun = durations.parse(at)
    if begun is None:
        raise ValueError(f"time {at!r} is no time; write seconds from the start, such as 90, or 1.5h")
    if (problem := name_error(host)) is not None:
        raise ValueError(problem)
    if event not in EVENTS:
        raise ValueError(f"event {event!r} is not one of {', '.join(EVENTS)}")
    notice, slots = values.get("notice") or "0", values.get("slots") or "1"
    before = durations.parse(notice)
    if before is None:
        raise ValueError(f"notice {notice!r} is no time; write seconds, such as 120, or leave it empty")
    if before and event != "down":
        raise ValueError(f"notice of a host that is {event}; only one that is down has any")
    if not slots.isdecimal() or not 1 <= int(slots) <= MAX_SLOTS:
        raise ValueError(f"slots {slots!r}: write a whole number from 1 to {MAX_SLOTS}")
    return Row(begun, host, event, before, int(slots), values.get("kind", ""), _price(event, values.get("price", "")))


def _price(event: str, text: str) -> float | None:
    price = durations.parse(text) if text[-1:].isdigit() else None
    if (text and (price is None or event not in ("up", "price"))) or (event == "price" and not text):
        raise ValueError(f"price {text!r} of a host that is {event}; write one such as 0.35 with up or price only")
    return price


def checked(rows: Sequence[Row], *, where: str, numbers: Sequence[int] = (), ends: float | None = None) -> Trace:
    """Return a trace of these rows. Raises :class:`UsageError` if a host that does not exist is removed, or if time
    decreases."""
    there: set[str] = set()
    slots: dict[str, int] = {}
    at = 0.0
    for index, row in enumerate(rows):
        line = f"{where}:{numbers[index]}" if numbers else where
        if row.at < at:
            raise UsageError(f"{line}: time {row.at:g} is before {at:g}, that of the row above; sort rows by time")
        if (row.event == "up") == (row.host in there):
            state = "up already" if row.host in there else "not up"
            raise UsageError(f"{line}: {row.host} is {state}; leave the row out, or write what came before it")
        at = row.at
        if row.event == "up":
            there.add(row.host)
            slots[row.host] = max(row.slots, slots.get(row.host, 0))
        elif row.event not in ("crash", "price"):
            there.discard(row.host)
    if not rows:
        raise UsageError(f"{where}: has no row; write one of {','.join(COLUMNS)} for each host that comes or goes")
    return Trace(tuple(rows), max(at, ends or 0.0), slots)


def written(rows: Iterable[Row]) -> str:
    """Return the text that :func:`parsed` reads."""
    lines = [",".join(COLUMNS)]
    for row in rows:
        up = row.event == "up"
        slots, notice = str(row.slots) if up else "", f"{row.notice:g}" if row.notice else ""
        price = "" if row.price is None else f"{row.price:g}"
        lines.append(f"{row.at:.12g},{row.host},{row.event},{notice},{slots},{row.kind if up else ''},{price}")
    return "\n".join(lines) + "\n"
