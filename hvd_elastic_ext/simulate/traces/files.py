"""Reads a trace file; the format is recognized by its beginning."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces import counts, job_logs, prices, rows
from hvd_elastic_ext.simulate.traces.assumed import NOTHING, Assumed
from hvd_elastic_ext.simulate.traces.rows import Trace


def read(path: Path, assumed: Assumed = NOTHING) -> Callable[[int], Trace]:
    """Return the trace of each seed. Raises :class:`UsageError`, which names the line and says how to write it."""
    return parsed(rows.text_of(path), where=str(path), assumed=assumed)


def parsed(text: str, *, where: str, assumed: Assumed = NOTHING) -> Callable[[int], Trace]:
    """Return the trace of each seed. Raises :class:`UsageError`."""
    begins = text.lstrip()[:1]
    header = _header(text, where=where)
    if begins == "[":
        return job_logs.philly(text, where=where, assumed=assumed).trace
    if begins == "{" or {"SpotPrice", "Timestamp"} <= header:
        return prices.aws(text, where=where, assumed=assumed).trace
    if {"SpotPrice", "SPS"} <= header:
        return prices.spotlake(text, where=where, assumed=assumed).trace
    if {"job_id", "gpu_num"} <= header:
        return job_logs.helios(text, where=where, assumed=assumed).trace
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
