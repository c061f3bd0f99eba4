"""``hvd-elastic events JOURNAL``: what happened in a job and why.

It reads only the journal: the job may run, have ended, or have been on another machine. A last line that a crash cut
off is not
an error; other lines that are not a journal's are counted, and skipped.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.journal import FILE, Record, parse_line
from hvd_elastic_ext.io.job_folders import find_journal, one_job
from hvd_elastic_ext.io.option_parser import Parser
from hvd_elastic_ext.io.user_files import read_given
from hvd_elastic_ext.report.job_report import JobReport, build_report
from hvd_elastic_ext.report.runs import choose, runs

MAX_JOURNAL: Final = 2 << 30
"""Most bytes of a journal that is read."""


def parser() -> argparse.ArgumentParser:
    """The options of ``hvd-elastic events``."""
    options = Parser(
        prog="hvd-elastic events",
        description="What happened in a job and why, from its journal.",
        allow_abbrev=False,  # --replay is another command, chosen by its full name
    )
    options.add_argument(
        "journal",
        metavar="JOB",
        nargs="?",
        help="a job's name, its folder, or its journal (default: the job here that wrote last)",
    )
    options.add_argument("--job", metavar="NAME", help="the same as JOB")
    options.add_argument(
        "--run", metavar="RUN", help="a run of the job other than the newest: its number from 1, its name, or all"
    )
    options.add_argument(
        "--replay", metavar="FILE", help="instead: run the driver over what `run --record-events FILE` wrote"
    )
    options.add_argument("--json", action="store_true", help="rows and series as JSON instead of a table")
    options.add_argument(
        "--plot", metavar="FILE", type=Path, help="also draw a picture; FILE ends in .svg, .png or .html"
    )
    return options


def main(argv: Sequence[str]) -> int:
    """Show one journal. Raises :class:`UsageError` for an invalid one."""
    options = parser().parse_args(argv)
    named = one_job(options.journal, options.job)
    try:
        options.journal = find_journal(named)
    except UsageError as error:
        raise UsageError(f"{error}; for a job on a cluster give -n NAMESPACE" if named else str(error)) from None
    records, foreign = read_journal(options.journal)
    chosen, remark = choose(runs(records), options.run)
    report = build_report(chosen)
    if options.plot is not None:
        from hvd_elastic_ext.report.picture import draw

        draw(report, options.plot, title=f"Elastic training: {job_name(report, options.journal)}")
    show(report, as_json=options.json)
    if remark:
        sys.stderr.write(f"hvd-elastic events: {remark}\n")
    if foreign:
        lines = "1 line is not a journal line" if foreign == 1 else f"{foreign} lines are not journal lines"
        sys.stderr.write(f"hvd-elastic events: {options.journal}: {lines}; skipped\n")
    if options.plot is not None:
        sys.stderr.write(f"hvd-elastic events: wrote {options.plot}\n")
    return 0


def job_name(report: JobReport, journal: Path) -> str:
    """The job's name, by its journal or, in an older one, by where that lies. Pure."""
    return report.job or (journal.parent.name if journal.name == FILE else "") or journal.name


def show(report: JobReport, *, as_json: bool) -> None:
    """Write the report to standard output."""
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
        return
    from hvd_elastic_ext.report.table import show as show_table

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a Latin-1 terminal has no arrow
    show_table(report, sys.stdout)


def to_json(report: JobReport) -> str:
    """Rows and series in one object; field names are those of :class:`JobReport`."""
    return json.dumps(dataclasses.asdict(report), indent=1, allow_nan=False)


def read_journal(path: Path) -> tuple[list[Record], int]:
    """Return the records of a journal, and the number of invalid lines (except a last one that a crash cut off).

    Raises :class:`UsageError` for a missing or empty file, or one without any record.
    """
    try:
        content = read_given(path, most=MAX_JOURNAL).decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read: {error.strerror}; give the file that `hvd-elastic run --journal` wrote"
        ) from None
    if not content.strip():
        raise UsageError(f"{path}: is empty; the job wrote no journal yet, or this is not its file")
    *whole, torn = content.split("\n")
    parsed = [parse_line(line) for line in whole if line.strip()]
    last = parse_line(torn)
    records = [record for record in (*parsed, last) if record is not None]
    if not records:
        raise UsageError(f"{path}: holds no journal line; give the file that `hvd-elastic run --journal` wrote")
    return records, parsed.count(None)
