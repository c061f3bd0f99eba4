"""Reduces a journal of any length to few records: all that the report needs, and a sample of the steps.

Most lines of a long journal are steps. They are recognized by the beginning of the line, and only steps that are kept
are parsed. Beside each change of the world a few steps are kept in any case, so that downtimes stay exact. Pure.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.events import EVENTS
from hvd_elastic_ext.core.goodput import Accounting
from hvd_elastic_ext.core.journal import Record, parse_line
from hvd_elastic_ext.report.faults import explains
from hvd_elastic_ext.report.job_report import TOGETHER_S
from hvd_elastic_ext.report.series import host_count
from hvd_elastic_ext.report.timeline import whole

MAX_STEPS: Final = 3000
"""Most sampled steps that are kept."""
MAX_EACH: Final = 1000
"""Most records that are kept of each other event: the newest ones."""
BESIDE: Final = 3
"""Steps that are kept on each side of a change of the world."""
TIMES: Final = 1000
"""Number of times between steps from which the typical one is taken."""
LONGEST_TEXT: Final = 2000
"""Most characters of a text that are kept."""
_STEP: Final = re.compile(
    rb'\{"t": ?[^,"]+, ?"mono": ?([-\d.]+), ?"generation": ?(\d+), ?"event": ?"stepped"'
    rb'(?:(?:, ?"host": ?"[^"\\]*")?, ?"step": ?(\d{1,15}), ?"rank": ?0, ?"size": ?(\d{1,15})'
    rb'(?:, ?"world": ?(\d{1,15}))?[,}])?'
)
"""The beginning of a step's line, as the journal writes it: its time and generation, and the step, size and world."""
_BULKY: Final = ("hosts", "slots_before", "command")


class _Step(NamedTuple):
    """A step that may be kept."""

    number: int
    """How many steps were journalled before it."""
    beside: bool
    """It is next to a change of the world."""
    record: Record


class Thinned:
    """Takes the lines of one run in order. :meth:`records` returns the records that represent them."""

    def __init__(self, *, most_steps: int = MAX_STEPS, most_each: int = MAX_EACH) -> None:
        self._most_steps, self._most_each = most_steps, most_each
        self._others: dict[str, deque[tuple[int, Record]]] = {}
        """By event: the place in the journal, and the record."""
        self._steps: list[tuple[int, _Step]] = []
        self._sampled = 0
        self._newest: deque[tuple[int, int, bytes]] = deque(maxlen=BESIDE)
        """The last steps: place, number, line."""
        self._kept_to = -1
        """The number of the newest step that is kept."""
        self._after = self._beside = 0
        self._times: deque[float] = deque(maxlen=TIMES)
        """From one step to the next, at steps that are kept."""
        self._generation: bytes | None = None
        self._stride = 1
        self.accounting = Accounting()
        """Of all lines, also those that are not kept."""
        self.lines = self.steps = self.foreign = 0
        self.counts: Counter[str] = Counter()
        """How many lines each event has, steps included."""

    def add_step(self, line: bytes) -> bool:
        """Add a line if it is a step, by its beginning. Return whether it is one."""
        step = _STEP.match(line)
        if step is None:
            return False
        self.lines += 1
        self._count_step(line, step)
        self._add_step(line, step[2])
        return True

    def add(self, line: bytes) -> Record | None:
        """Add a line. Return its record, or None for a step or an invalid line."""
        if self.add_step(line):
            return None
        self.lines += 1
        record = _parsed(line)
        if record is None:
            self.foreign += bool(line.strip())
            return None
        self.accounting.take(record)
        if record.event == "stepped":  # not in the form that our journal writes
            self._add_step(line, str(record.generation).encode())
            return None
        self.counts[record.event] += 1
        self._add_other(record)
        return record

    @property
    def newest_step(self) -> Record | None:
        """Return the record of the newest step."""
        return _parsed(self._newest[-1][2]) if self._newest else None

    @property
    def thinned(self) -> bool:
        """Whether steps were left out."""
        return self._stride > 1

    @property
    def left_out(self) -> int:
        """Return how many records of events other than steps are too old to be shown."""
        return sum(max(0, self.counts[event] - self._most_each) for event in self._others if _has_rows(event))

    def records(self) -> list[Record]:
        """Return the kept records in the order of the journal."""
        kept = [(place, step.record) for place, step in self._steps]
        kept += [pair for pairs in self._others.values() for pair in pairs]
        kept += [(place, record) for place, _, record in self._unkept()]
        return [record for _, record in sorted(kept, key=lambda pair: pair[0])]

    def step_s(self) -> float | None:
        """The median time between two steps that follow one another in one world; None if there are none."""
        return statistics.median(self._times) if self._times else None

    def _unkept(self) -> list[tuple[int, int, Record]]:
        """Return the newest steps that are not in the sample."""
        found = []
        for place, number_, line in self._newest:
            record = _parsed(line) if number_ > self._kept_to else None
            if record is not None:
                found.append((place, number_, record))
        return found

    # -- steps

    def _count_step(self, line: bytes, step: re.Match[bytes]) -> None:
        mono, _, number_, size, world = step.groups()
        if number_ is None or (world is None and b'"world"' in line):
            record = _parsed(line)
            if record is not None:
                self.accounting.take(record)
            return
        try:
            at = float(mono)
        except ValueError:
            return
        self.accounting.stepped(int(number_), int(size), None if world is None else int(world), at)

    def _add_step(self, line: bytes, generation: bytes) -> None:
        if generation != self._generation:
            self._change_of_world()
            self._generation = generation
        place, ordinal = self.lines, self.steps
        self.steps += 1
        self._newest.append((place, ordinal, line))
        if self._after:
            self._after -= 1
            self._keep_step(place, ordinal, line, beside=True)
        elif self._in_sample(ordinal):
            self._keep_step(place, ordinal, line, beside=False)
            self._sampled += 1
            if self._sampled > self._most_steps:
                self._thin()

    def _change_of_world(self) -> None:
        for place, ordinal, line in tuple(self._newest):
            self._keep_step(place, ordinal, line, beside=True)
        self._after = BESIDE

    def _keep_step(self, place: int, ordinal: int, line: bytes, *, beside: bool) -> None:
        if ordinal <= self._kept_to:
            return
        record = _parsed(line)
        if record is None:
            return
        self._steps.append((place, _Step(ordinal, beside, record)))
        self._kept_to = ordinal
        self._beside += beside
        before = next((_parsed(line) for _, number_, line in self._newest if number_ == ordinal - 1), None)
        if before is not None and before.generation == record.generation and record.mono > before.mono:
            self._times.append(record.mono - before.mono)
        if self._beside > self._most_steps:
            self._forget_old_worlds()

    def _in_sample(self, ordinal: int) -> bool:
        return ordinal % self._stride == 0

    def _thin(self) -> None:
        self._stride *= 2
        self._steps = [(place, step) for place, step in self._steps if step.beside or self._in_sample(step.number)]
        self._sampled = sum(not step.beside for _, step in self._steps)

    def _forget_old_worlds(self) -> None:
        """Drop the steps kept beside the oldest of thousands of worlds: their own lines have the downtime."""
        beside = [at for at, (_, step) in enumerate(self._steps) if step.beside]
        old = set(beside[: len(beside) // 2])
        self._steps = [each for at, each in enumerate(self._steps) if at not in old]
        self._beside -= len(old)

    # -- everything else

    def _add_other(self, record: Record) -> None:
        if record.event in ("started", "resized", "slept", "finished"):
            self._change_of_world()
        kept = self._others.setdefault(record.event, deque(maxlen=self._most_each))
        if not _has_rows(record.event):
            if record.event in ("committed", "synced"):  # the newest one is enough: it has the step
                kept.clear()
                kept.append((self.lines, _compact(record)))
            return
        if record.event == "exited" and not explains(record):
            return
        if record.event == "rolled_back" and kept and _tells_no_more(kept[-1][1], record):
            return
        if kept and record.event in ("resized", "published"):
            place, before = kept[-1]
            kept[-1] = place, before if before.get("cause") == "start" else _without_names(before)
        kept.append((self.lines, _compact(record)))


def thinned(lines: Iterable[bytes]) -> Thinned:
    """Thin all lines at once."""
    kept = Thinned()
    for line in lines:
        kept.add(line)
    return kept


def _has_rows(event: str) -> bool:
    return event in EVENTS and EVENTS[event].has_rows


def _parsed(line: bytes) -> Record | None:
    return parse_line(line.decode("utf-8", errors="replace"))


def _tells_no_more(before: Record, record: Record) -> bool:
    """Whether a roll-back is one of many at the same time, and not the longest."""
    near = 0 <= record.mono - before.mono < TOGETHER_S
    lost, known = whole(record.get("steps_lost")), whole(before.get("steps_lost"))
    return near and (lost is None or (known is not None and lost <= known))


def _without_names(record: Record) -> Record:
    """Replace the host names of an old world by their number."""
    fields = {key: value for key, value in record.fields.items() if key not in _BULKY}
    return replace(record, fields={**fields, "hosts": host_count(record.get("hosts"))})


def _compact(record: Record) -> Record:
    """Return the record with texts of bounded length."""
    fields: Mapping[str, Any] = {
        key: value[:LONGEST_TEXT] if isinstance(value, str) else value for key, value in record.fields.items()
    }
    return replace(record, fields=fields)
