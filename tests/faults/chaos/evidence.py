"""Reads the files that a job leaves in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.journal import Record, read
from tests.faults.chaos import lines
from tests.faults.chaos.checker import Seen

JOURNAL: Final = "journal.jsonl"
TRACES: Final = "traces"
WATCHED: Final = "seen"


def records(folder: Path, *events: str) -> list[Record]:
    """Return the journal records of these events."""
    path = folder / JOURNAL
    if not path.exists():
        return []
    with path.open() as file:
        return [record for record in read(file) if record.event in events]


def seen(folder: Path, *, goal: int | None = None) -> Seen:
    """Return all that is known of a job."""
    with (folder / WATCHED).open() as file:
        watched = tuple(lines.parse(file))
    resized, sealed = records(folder, "resized"), records(folder, "sealed")
    return Seen(tuple(lines.processes(folder / TRACES)), watched, tuple(resized), tuple(sealed), goal)
