"""What is going on, and what happened, in a sentence for people. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.report.job_report import RESTARTED, JobReport, Row
from hvd_elastic_ext.report.table import counted

OK, WARN, BAD, INFO = "ok", "warn", "bad", "info"
LATE_S: Final = 60.0
"""A journal without a new line for so long is told as that, where no launcher answers."""
NAMED: Final = 3
"""Hosts that a sentence names."""
RECENT_S: Final = 600.0
"""Faults of so long ago still count for whether all is right."""

STOPPED: Final = (129, 130, 143)
"""Exit codes of a launcher that was told to stop: by SIGHUP, SIGINT, SIGTERM."""

KINDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("worker failed", "exited", "struck", "fenced", "isolated", "stalled", "trains alone", "not resumed",
         "checkpoint skipped", RESTARTED, "not resized"), BAD),
    **dict.fromkeys(
        ("hosts removed", "rolled back", "straggler", "notice", "refused", "blocked", "slept", "not slept",
         "not sealed", "not sent", "not scaled", "not_scaled", "workers not requested", "notices unavailable",
         "job restarted", "started", "advised", "formed again"), WARN),
    **dict.fromkeys(("start", "hosts added", "cooldown over", "sealed", "woke", "resumed", "cleared"), OK),
}  # fmt: skip
"""How an event looks, by its name; of a resize by its cause."""


class Verdict(NamedTuple):
    """``level``: whether all is right; ``text``: one sentence."""

    level: str
    text: str


def kind_of(row: Row) -> str:
    """How a row looks."""
    if row.event == "finished":
        return OK if row.note == "exit code 0" else BAD
    return KINDS.get(row.cause if row.event == "resized" else row.event, INFO)


def duration(seconds: float) -> str:
    """For people: ``9.5 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if not 60 <= seconds < math.inf:  # a damaged journal may have any time
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size, high, low, name in ((3600, 60, 1, "min s"), (86400, 3600, 60, "h min"), (0, 86400, 3600, "d h")):
        if whole < size or not size:
            first, second = name.split()
            rest = whole % high // low
            return f"{whole // high} {first}" + (f" {rest} {second}" if rest else "")
    raise AssertionError("days take everything")


def outcome(report: JobReport) -> Verdict:
    """What happened, of a run with an end."""
    end = next((row for row in reversed(report.rows) if row.event == "finished"), None)
    after = f"after {duration(report.duration_s)}" + (f" at step {report.steps:,}" if report.steps else "")
    reason = "" if end is None or not end.cause else f": {end.cause}"
    if report.code == 0:
        return Verdict(OK, f"Training is done {after}{reason}. {cost(report)}")
    if report.code == 75:
        return Verdict(WARN, f"The job sleeps, and its launcher has ended {after}{reason}. {cost(report)}")
    if report.code in STOPPED:
        return Verdict(WARN, f"The job was stopped {after}{reason}. {cost(report)}")
    code = "" if report.code is None else f" with exit code {report.code}"
    return Verdict(BAD, f"The job failed{code} {after}{reason}. {cost(report)}")


def cost(report: JobReport) -> str:
    """What changes and faults have cost."""
    resizes = [row for row in report.resizes if row.before]
    lost = sum(row.steps_lost or 0 for row in report.rows if row.event in ("resized", RESTARTED))
    down = sum(row.downtime_s or 0.0 for row in (*resizes, *(row for row in report.rows if row.event == "slept")))
    if not resizes and not down:
        return "The world never changed."
    return (
        f"{counted(len(resizes), 'change').capitalize()} of the world cost {duration(down)} without a step, and "
        f"{counted(lost, 'step')} had to be done again."
    )


def of_now(report: JobReport, live: Mapping[str, Any] | None, *, now: float, last: float, asleep: bool) -> Verdict:
    """What is going on. ``live``: the launcher's answer, None without one; ``last``: when the journal's newest line
    was written (Unix seconds, as ``now``).
    """
    if report.code is not None:
        return outcome(report)
    if live is None:
        return _without_launcher(report, ago=now - last)
    said = str(live.get("said", ""))
    hosts: Sequence[Mapping[str, Any]] = live.get("hosts", ())
    training = sum(bool(host.get("trains")) for host in hosts)
    listed = sum(bool(host.get("listed")) for host in hosts)
    count = f"{training} of {counted(listed, 'host')}: " if listed else ""
    waits = asleep or said.startswith(("waiting", "asleep", "sleep"))
    alone = "TRAINS ALONE" in said
    blocked, fault = any(host.get("state") == "blocked" for host in hosts), _recent_fault(report)
    level = BAD if alone else WARN if waits or blocked or fault else OK
    return Verdict(level, f"{count}{said}{_told(fault, report)}")


def _without_launcher(report: JobReport, *, ago: float) -> Verdict:
    step = f", at step {report.steps:,}" if report.steps else ""
    if ago < LATE_S:
        return Verdict(INFO, f"The journal grows{step}; the launcher cannot be asked from here.")
    text = (
        f"No launcher answers, and none has ended this run; the last line of its journal is {duration(ago)} old{step}."
    )
    return Verdict(BAD, f"{text} It was killed, or runs where this page cannot ask it. {cost(report)}")


def _recent_fault(report: JobReport) -> Row | None:
    recent = (row for row in reversed(report.rows) if row.at >= report.duration_s - RECENT_S)
    return next((row for row in recent if kind_of(row) == BAD), None)


def _told(fault: Row | None, report: JobReport) -> str:
    if fault is None:
        return ""
    name = fault.cause if fault.event == "resized" else fault.event
    where = f" ({', '.join(fault.hosts[:NAMED])})" if fault.hosts else ""
    return f". Last fault: {name}{where}, {duration(report.duration_s - fault.at)} ago"


def why(report: JobReport) -> list[int]:
    """Places of the rows that explain a bad end or a fault, the newest first: at most three."""
    bad = [at for at, row in enumerate(report.rows) if kind_of(row) == BAD and row.event != "finished"]
    return bad[-3:][::-1]
