"""The report of a run: one table on a terminal, and a page with a section for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.machine import Machine
from benchmarks.model import Case, Figure, Ratio, Repetition, Row, Summary, Timing, meets_bar, ratio

NONE = "–"
"""The text for a side that cannot be measured."""
HEADER = ("case", "what", "ours / stock", "ours", "stock", "bar for ours")


def report(
    machine: Machine, rows: Sequence[Row], *, repetitions: Sequence[Repetition], left_out: Mapping[str, str]
) -> str:
    """Return the report: table, failures, omitted cases (with the reason), machine."""
    parts = [table(rows), legend(), failures(repetitions), not_tried(left_out), "\n".join(machine.lines())]
    return "\n\n".join(part for part in parts if part) + "\n"


def page(
    machine: Machine,
    rows: Sequence[Row],
    *,
    cases: Sequence[Case],
    repetitions: Sequence[Repetition],
    left_out: Mapping[str, str],
    command: str,
    began: str,
    interrupted: bool = False,
) -> str:
    """Return the report as a page of Markdown: how the bars stand, then a section for each case.

    ``command``: what made the page. ``began``: the day of the run. ``interrupted``: it was not run to its end.
    """
    parts = [
        "# The report of one run",
        f"`{command}` wrote this page on {began}. Do not edit it. [benchmarks.md](benchmarks.md) says how to read it.",
        "\n".join(f"- {line}" for line in machine.lines()),
        _bars(rows),
        legend(),
        "The run was interrupted: cases that it had not begun are left out." if interrupted else "",
        failures(repetitions),
        not_tried(left_out),
    ]
    for case in cases:
        about = f"{case.about[0].upper()}{case.about[1:]}."
        parts += [f"## {case.name}", about, _section([row for row in rows if row.case == case.name])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _bars(rows: Sequence[Row]) -> str:
    """Return how many bars ours keeps, and which it misses."""
    kept = [row for row in rows if meets_bar(row) is True]
    missed = [row for row in rows if meets_bar(row) is False]
    unknown = [row for row in rows if row.figure.has_bar and meets_bar(row) is None]
    lines = [f"Bars: {len(kept)} kept, {len(missed)} missed, {len(unknown)} not measured."]
    for word, those in (("missed", missed), ("not measured", unknown)):
        lines += [f"- {word}: {row.case}: {row.figure.quantity}, {row.figure.statistic}" for row in those]
    return "\n".join(lines)


def _section(rows: Sequence[Row]) -> str:
    """Return the table of one case, without columns that would be empty."""
    cells = [HEADER[1:], *(_cells(row)[1:] for row in rows)]
    used = [column for column in range(len(cells[0])) if any(line[column] not in ("", NONE) for line in cells[1:])]
    lines = ["| " + " | ".join(line[column] for column in used) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "---|" * len(used), *lines[1:]])


def table(rows: Sequence[Row]) -> str:
    """Return one line for each row, below :data:`HEADER`."""
    cells = [HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    return "\n".join([lines[0], rule, *lines[1:]])


def legend() -> str:
    """Return the meaning of the cells."""
    return "In brackets: lowest to highest, number of measurements. `> 60 s`: had not happened when the deadline came."


def failures(repetitions: Sequence[Repetition]) -> str:
    """Return every failed repetition with its reason; empty if none failed."""
    failed = [r for r in repetitions if r.failure is not None]
    if not failed:
        return ""
    lines = [f"- {r.case}, {r.side}, repetition {r.number + 1}: {r.failure}" for r in failed]
    return "\n".join([f"Failed repetitions: {len(failed)} of {len(repetitions)}; not in the table.", "", *lines])


def not_tried(left_out: Mapping[str, str]) -> str:
    """Return every case that this machine cannot run, and why; empty if there is none."""
    return "\n".join(f"Not run: {name}: {reason}" for name, reason in left_out.items())


def _cells(row: Row) -> tuple[str, ...]:
    both = len(row.sides) > 1
    return (
        row.case,
        f"{row.figure.quantity}, {row.figure.statistic}",
        ratio_text(ratio(row.ours.value, row.stock.value)) if both else NONE,
        side_text(row.figure, row.ours) if "ours" in row.sides else NONE,
        side_text(row.figure, row.stock) if "stock" in row.sides else NONE,
        bar_text(row),
    )


def side_text(figure: Figure, side: Summary) -> str:
    """Return ``312 ms (290 ms to 350 ms, 5)``; extremes without the part in parentheses."""
    if side.value is None or side.low is None or side.high is None:
        return "no figure"
    value, low, high = (value_text(figure, timing) for timing in (side.value, side.low, side.high))
    return value if figure.statistic != "median" else f"{value} ({low} to {high}, {side.count})"


def value_text(figure: Figure, timing: Timing) -> str:
    """Format a value in the figure's unit."""
    bound = "> " if timing.at_least else ""
    return time_text(timing) if figure.unit == "s" else f"{bound}{timing.seconds:.1f} {figure.unit}"


def time_text(timing: Timing) -> str:
    """Format a time with three digits at most, in ms below one second."""
    bound = "> " if timing.at_least else ""
    ms = timing.seconds * 1000
    if ms < 999.5:
        return f"{bound}{ms:.0f} ms" if ms >= 99.95 else f"{bound}{ms:.1f} ms"
    return f"{bound}{timing.seconds:.2f} s" if timing.seconds < 9.995 else f"{bound}{timing.seconds:.1f} s"


def ratio_text(value: Ratio | None) -> str:
    """Format a ratio: ``0.12``, ``< 0.12`` or ``?``."""
    if value is None:
        return "?"
    digits = 3 if value.value < 0.0995 else 2
    return f"{value.bound} {value.value:.{digits}f}".strip()


def bar_text(row: Row) -> str:
    """Return the bar, and whether ours meets it; empty if there is none."""
    figure, is_kept = row.figure, meets_bar(row)
    bars = []
    if figure.bar_s is not None:
        bars.append(f"at most {value_text(figure, Timing(figure.bar_s))}")
    if figure.bar_ratio is not None:
        slack = f" or stock + {value_text(figure, Timing(figure.slack_s))}" if figure.slack_s else ""
        bars.append(f"at most {figure.bar_ratio:.3g} × stock{slack}")
    if figure.bar_floor is not None:
        found = ratio(row.ours.value, row.floor.value if row.floor is not None else None)
        bars.append(f"at most {figure.bar_floor:g} × {figure.floor} (is {ratio_text(found)})")
    if not bars:
        return ""
    kept = "not measured" if is_kept is None else "kept" if is_kept else "MISSED"
    return f"{', '.join(bars)}: {kept}"
