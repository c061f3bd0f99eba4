"""The report as a table on a terminal, or as plain text."""

from __future__ import annotations

import itertools
from typing import Final, TextIO

from hvd_elastic_ext.core.events import BAD, OK, WARN
from hvd_elastic_ext.io import tables
from hvd_elastic_ext.report.job_report import JobReport, Row, Total, steps_again, total

STYLES: Final = {OK: "green", WARN: "yellow", BAD: "red"}
"""Colours by level."""
HEADINGS: Final = ("at", "event", "hosts", "size", "downtime", "steps lost", "note")


def show(report: JobReport, stream: TextIO) -> None:
    """Write the table of events and one line of summary."""
    rows = ((cells(row), STYLES.get(row.level, "")) for row in report.rows)
    tables.show(stream, HEADINGS, rows, right=("at", "downtime", "steps lost"), summary=summary(report))


def cells(row: Row) -> tuple[str, ...]:
    """The cells of one row, in the order of ``HEADINGS``: ``?`` for unknown, empty for not applicable."""
    resized = row.event == "resized"
    downtime = "" if row.downtime_s is None else f"{row.downtime_s:.2f} s"
    lost = "" if row.steps_lost is None else str(row.steps_lost)
    if resized and row.cause != "start":
        downtime, lost = downtime or "?", lost or "?"
    elif row.cause == "start" and not row.downtime_s:
        lost = lost if row.steps_lost else ""
    return f"{row.at:.1f} s", row.title, hosts_text(row), size_text(row), downtime, lost, row.details


def hosts_text(row: Row) -> str:
    """``+`` for hosts that came, ``-`` for hosts that went, plain names for others concerned."""
    signed = [f"+{name}" for name in row.added] + [f"-{name}" for name in row.removed]
    return " ".join([*signed, *(name for name in row.hosts if name not in (*row.added, *row.removed))])


def size_text(row: Row) -> str:
    """World size before and after."""
    if row.event not in ("resized", "slept"):
        return ""
    return f"{'?' if row.before is None else row.before} → {'?' if row.after is None else row.after}"


def summary(report: JobReport) -> str:
    """The job in one line."""
    resizes = [row for row in report.resizes if row.before]
    downtime = total(row.downtime_s for row in resizes)
    again = "" if downtime.nothing_known and steps_again(report).nothing_known else f" and {again_text(report)}"
    comma = "," if downtime.nothing_known and again else ""
    end = "has not finished" if report.code is None else f"finished with exit code {report.code}"
    steps = "no steps journalled" if report.steps is None else counted(report.steps, "step")
    if report.steps is not None and report.first_step:
        steps += f", {max(0, report.steps - report.first_step)} of them in this run"
    return (
        f"{report.duration_s:.1f} s, {steps}; {_cost_text('resize', downtime)}"
        f"{'' if downtime.nothing_known else ' of standstill'}{comma}{again}; "
        f"{_sleeps_text(report)}{goodput_text(report)}the job {end}."
    )


def _cost_text(noun: str, cost: Total) -> str:
    """Such as "2 resizes cost 1.50 s"; what is not known is not counted as nothing."""
    text = counted(cost.number, noun)
    if cost.unknown:
        whose = "the cost of which" if cost.number == 1 else f"of which the cost of {cost.unknown}"
        text += f", {whose} is not known"
    if cost.nothing_known:
        return text
    return f"{text}{', cost at least' if cost.unknown else ' cost'} {cost.known:.2f} s"


def again_text(report: JobReport) -> str:
    """Such as "3 steps done again"."""
    again = steps_again(report)
    if again.nothing_known:
        return "an unknown number of steps done again"
    return f"{'at least ' if again.unknown else ''}{counted(int(again.known), 'step')} done again"


def goodput_text(report: JobReport) -> str:
    """The goodput, if the time of a step is known."""
    goodput = report.goodput
    if goodput is None or goodput.ratio is None:
        return ""
    return (
        f"goodput {100.0 * goodput.ratio:.1f} % of what the listed hosts could have done in {goodput.since_s:.1f} s; "
    )


def _sleeps_text(report: JobReport) -> str:
    """The cost of sleeps, with the time to train again after each."""
    sleeps = [i for i, row in enumerate(report.rows) if row.event == "slept"]
    if not sleeps:
        return ""
    costs = list[float | None]()
    for begin, end in itertools.pairwise([*sleeps, len(report.rows)]):
        start = next((row for row in report.rows[begin:end] if row.event == "resized"), None)
        cost = total(row.downtime_s for row in (report.rows[begin], start) if row is not None)
        costs.append(None if cost.unknown else cost.known)
    return f"{_cost_text('sleep', total(costs))}; "


def counted(number: int, noun: str) -> str:
    """Such as "1 resize" and "2 resizes"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
