"""The journal of a job: one JSON object for each line, append-only.

Every line has ``t`` (Unix seconds, for users), ``mono`` (seconds, for
durations within one machine), ``generation`` and ``event``; other fields depend
on the event (:mod:`hvd_elastic_ext.core.events`). Readers ignore events and keys
that they do not know, and a last line that a crash cut off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.json_text import to_text

FOLDERS: Final = ".hvd-elastic"
"""The folder that contains a folder for each job, in the directory where jobs are started."""
FILE: Final = "journal.jsonl"
"""Name of the journal in a job's folder, if no other path is given."""

_OWN = frozenset({"t", "mono", "dropped"})


class Sink(Protocol):
    """The destination of lines: any object that is opened to append text."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class Journal:
    """Writes events, with one ``write`` call for each line, so that several processes may append to one file.

    A sink that fails (a full disk) never stops the job. The line is dropped and
    counted in :attr:`dropped`, and the next line that is written contains the
    count as ``dropped``. ``announce`` is called with each event, its generation and fields, even if it is not written.
    """

    def __init__(self, sink: Sink, clock: Clock, announce: Callable[[str, int, Mapping[str, Any]], None] | None = None):
        self._sink = sink
        self._announce = announce
        self._clock = clock
        self.dropped = 0
        """Number of lines lost since the last written one."""

    def record(self, event: str, /, *, generation: int, at_mono: float | None = None, **fields: Any) -> None:
        """Append one event. Numbers that JSON does not know (NaN, infinity) are written as null.

        ``at_mono``: the time of the event (mono), if it is not the present time.

        Raises ``ValueError`` for an unknown event name and for a field that every line has of its own.
        """
        check(event, fields)
        now = self._clock.mono()
        ago = 0.0 if at_mono is None else now - at_mono
        line: dict[str, Any] = {
            "t": round(self._clock.wall() - ago, 6),
            "mono": round(now - ago, 6),
            "generation": generation,
            "event": event,
            **fields,
        }
        if self.dropped:
            line["dropped"] = self.dropped
        # A failed write may have left a part of its line: a new line keeps that part out of this line.
        text = ("\n" if self.dropped else "") + to_text(line, default=str) + "\n"
        try:
            self._sink.write(text)
            self._sink.flush()
        except OSError:
            self.dropped += 1
        else:
            self.dropped = 0
        if self._announce is not None:
            self._announce(event, generation, fields)


def with_dropped(line: str, count: int) -> str:
    """Add to a line of a journal how many lines are missing before it. Another text is returned as it is."""
    head, brace, rest = line.rpartition("}")
    if not brace or not head.startswith("{") or rest.strip():
        return line
    return f'{head},"dropped":{count}}}{rest}'


def check(event: str, fields: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for an unknown event name and for a field that every line has of its own."""
    if event not in EVENTS:
        raise ValueError(f"unknown journal event {event!r}; add it to core/events.py")
    taken = [name for name in fields if name in _OWN]
    if taken:
        raise ValueError(f"journal field {taken[0]!r} is every line's own; use another name")


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a journal, as it was read."""

    t: float
    mono: float
    generation: int
    event: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a field; ``default`` if the line does not have it."""
        return self.fields.get(key, default)


def read(lines: Iterable[str]) -> Iterator[Record]:
    """Yield the records of a journal in order, and skip other lines.

    A journal is evidence after a crash, so no line is an error: incomplete lines
    and lines of other programs are skipped.
    """
    for line in lines:
        record = parse_line(line)
        if record is not None:
            yield record


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _: None)
"""Reads NaN, infinity and 1e999 as null: readers write JSON, too, which has none of them."""


def parse_line(line: str) -> Record | None:
    """Read one line. Return None if it is incomplete or not a line of a journal."""
    try:
        entry = _DECODER.decode(line)
        return Record(
            t=float(entry.pop("t")),
            mono=float(entry.pop("mono")),
            generation=int(entry.pop("generation")),
            event=str(entry.pop("event")),
            fields=entry,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
