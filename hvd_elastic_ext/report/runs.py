"""The runs of a job; their records follow one another in its journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.report.timeline import text

ALL = "all"


class Run(NamedTuple):
    """The records of one run, which may have several launchers."""

    name: str | None
    """None in a journal without run names."""
    records: tuple[Record, ...]


def runs(records: Iterable[Record]) -> list[Run]:
    """Split a journal into runs, the oldest first: a ``started`` with another name begins one."""
    groups: list[tuple[str | None, list[Record]]] = []
    for record in records:
        name = text(record.get("run")) or None if record.event == "started" else None
        if not groups or (name is not None and name != groups[-1][0]):
            groups.append((name, []))
        groups[-1][1].append(record)
    return [Run(name, tuple(lines)) for name, lines in groups]


def choose(all_runs: Sequence[Run], which: str | None) -> tuple[tuple[Record, ...], str]:
    """Return the records of the wanted run (default: the newest), and a remark on the others, if any.

    ``which``: a run's name or the start of it, its number from 1, or ``all``. Raises :class:`UsageError` for an unknown
    run.
    """
    if which == ALL:
        return tuple(record for run in all_runs for record in run.records), ""
    fits = [
        index for index, run in enumerate(all_runs) if which and run.name is not None and run.name.startswith(which)
    ]
    if which is None:
        index = len(all_runs) - 1
    elif which.isdecimal() and len(which) < 10 and 0 < int(which) <= len(all_runs):
        index = int(which) - 1
    elif len(fits) == 1:
        index = fits[0]
    else:
        choices = ", ".join(f"{number} ({run.name or 'without a name'})" for number, run in enumerate(all_runs, 1))
        raise UsageError(f"--run {which!r}: which one? In this journal: {choices}, or {ALL}")
    chosen = all_runs[index]
    if len(all_runs) == 1:
        return chosen.records, ""
    name = f" ({chosen.name})" if chosen.name else ""
    return chosen.records, f"run {index + 1} of {len(all_runs)}{name}; --run N shows another one, --run {ALL} all"
