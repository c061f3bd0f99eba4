"""Options in; progress on standard error, the report on standard output."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import model, runner, table
from benchmarks.cases import CASES
from benchmarks.machine import Machine, this_machine
from benchmarks.model import Case, Repetition, Row

USAGE: Final = 2


def main(argv: Sequence[str]) -> int:
    """Run cases and print the report. Return 1 if a repetition failed, 130 if interrupted."""
    options = parse(argv)
    machine, began = this_machine(), time.strftime("%Y-%m-%d")
    done: list[Repetition] = []
    interrupted = False
    left_out = {case.name: reason for case in options.cases if (reason := case.missing()) is not None}
    cases = [case for case in options.cases if case.name not in left_out]
    for name, reason in left_out.items():
        progress(f"{name}: not run: {reason}")
    begun: list[Case] = []
    try:
        for case in cases:
            begun.append(case)
            measure(case, done, repeats=options.repeat or (1 if options.quick else case.repeats), quick=options.quick)
    except KeyboardInterrupt:
        interrupted = True
        progress("interrupted; what was measured until now:")
    rows = [row for case in begun for row in model.rows(case, done)]
    print(table.report(machine, rows, repetitions=done, left_out=left_out), end="")
    if options.markdown is not None:
        command = shlex.join(["scripts/bench", *argv])
        text = table.page(
            machine,
            rows,
            cases=begun,
            repetitions=done,
            left_out=left_out,
            command=command,
            began=began,
            interrupted=interrupted,
        )
        options.markdown.write_text(text)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(machine, rows, done=done), indent=1) + "\n")
    if interrupted:
        return 128 + signal.SIGINT
    return 1 if any(repetition.failure is not None for repetition in done) else 0


def measure(case: Case, done: list[Repetition], *, repeats: int, quick: bool) -> None:
    """Do all repetitions of a case, add each to ``done``, and print its result."""
    sides = "on each side" if len(case.sides) > 1 else f"of {case.sides[0]}"
    progress(f"{case.name}: {case.about}; {repeats} {sides}")
    for repetition in runner.run(case, repeats=repeats, quick=quick):
        done.append(repetition)
        progress(f"  {repetition.number + 1}/{repeats} {repetition.side}: {told(case, repetition)}")


def told(case: Case, repetition: Repetition) -> str:
    """Return the result of a repetition in one line."""
    if repetition.failure is not None:
        return f"FAILED: {repetition.failure}"
    parts = []
    for quantity, timings in repetition.values.items():
        median = model.statistic("median", timings)
        figure = next((figure for figure in case.figures if figure.quantity == quantity), model.Figure(quantity))
        parts.append(f"{quantity} {'none' if median is None else table.value_text(figure, median)}")
    return ", ".join(parts)


def as_json(machine: Machine, rows: Sequence[Row], *, done: Sequence[Repetition]) -> dict[str, Any]:
    """Return all measurements, and the rows made from them."""
    return {
        "machine": dataclasses.asdict(machine),
        "rows": [dataclasses.asdict(row) for row in rows],
        "repetitions": [dataclasses.asdict(repetition) for repetition in done],
    }


def progress(text: str) -> None:
    """Print a line about the progress."""
    print(text, file=sys.stderr, flush=True)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the options. Exits with one line for a case that does not exist."""
    names = {case.name: case for case in CASES}
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="python -m benchmarks",
        description="Measure ours beside stock Horovod.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="cases:\n" + "\n".join(f"{'* '[not case.named_only]} {case.name:24} {case.about}" for case in CASES),
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="which cases (default: all below without a *)")
    parser.add_argument(
        "--repeat", type=positive, metavar="N", help="repetitions on each side (default: the case's own)"
    )
    parser.add_argument("--quick", action="store_true", help="one short repetition on each side; no figures to trust")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report to FILE, as a page")
    options = parser.parse_args(argv)
    unknown = [name for name in options.cases if name not in names]
    if unknown:
        parser.exit(USAGE, f"benchmarks: there is no case {unknown[0]!r}; there are {', '.join(names)}\n")
    options.cases = [names[name] for name in options.cases] or [case for case in CASES if not case.named_only]
    return options


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number
