"""Reads a trace file; the format is recognized by its beginning.

A new format is a module here with a function that returns :class:`~.published.Levels`, and a row of :data:`FORMATS`;
a value that it needs and its files lack is a field of :class:`~.published.Assumed`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces import counts, job_logs, prices, rows
from hvd_elastic_ext.simulate.traces.published import NOTHING, Assumed, Levels
from hvd_elastic_ext.simulate.traces.rows import Trace


class Format(NamedTuple):
    """``columns``: those that only this format has; ``begins``: the first character of its files, if they are JSON."""

    read: Callable[..., Levels]
    columns: frozenset[str] = frozenset()
    begins: str = ""


FORMATS: Final = (
    Format(job_logs.philly, begins="["),
    Format(prices.aws, frozenset({"SpotPrice", "Timestamp"}), "{"),
    Format(prices.spotlake, frozenset({"SpotPrice", "SPS"})),
    Format(job_logs.helios, frozenset({"job_id", "gpu_num"})),
)
"""Published formats, the first one that fits. Counts come after them: a file of counts needs no header."""


def read(path: Path, assumed: Assumed = NOTHING) -> Callable[[int], Trace]:
    """Return the trace of each seed. Raises :class:`UsageError`, which names the line and says how to write it."""
    return parsed(rows.text_of(path), where=str(path), assumed=assumed)


def parsed(text: str, *, where: str, assumed: Assumed = NOTHING) -> Callable[[int], Trace]:
    """Return the trace of each seed. Raises :class:`UsageError`."""
    begins, header = text.lstrip()[:1], _header(text, where=where)
    for known in FORMATS:
        if (known.columns and known.columns <= header) or (known.begins and begins == known.begins):
            return known.read(text, where=where, assumed=assumed).trace
    if counts.is_counts(text):
        return counts.parsed(text, where=where, assumed=assumed).trace
    if assumed.given:
        raise UsageError(f"--assume: {where} lists each host, so there is nothing to assume; leave it out")
    trace = rows.parsed(text, where=where)
    return lambda seed: trace


def _header(text: str, *, where: str) -> set[str]:
    first = text.lstrip().partition("\n")[0]
    try:
        return set(next(csv.reader([first]), ()))
    except csv.Error as error:
        raise UsageError(f"{where}:1: {error}; begin it with the line {','.join(rows.COLUMNS)}") from None
