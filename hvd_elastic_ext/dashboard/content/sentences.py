"""The state of a job, and its end, in one sentence. Pure.

The sentence answers whether training is all right, and if not, why. While a launcher answers, its own line is taken;
the journal adds the last fault, as long as it matters, and what to do about it. After an end it says what the changes
have cost.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from hvd_elastic_ext.core.events import BAD, INFO, OK, SLEEPS, STOPPED, WARN, end_of
from hvd_elastic_ext.dashboard.content import advice
from hvd_elastic_ext.report.job_report import JobReport, Row, steps_again, total
from hvd_elastic_ext.report.table import counted

LATE_S: Final = 60.0
"""Seconds without a new journal line after which a run whose launcher does not answer counts as lost."""
SHORTEST_S: Final = 0.01
"""Shorter downtimes in seconds are not mentioned."""
NAMED: Final = 3
"""Most hosts that a sentence names."""
RECENT_S: Final = 600.0
"""Seconds for which a fault still counts for the level of the sentence."""
SHOWN: Final = 3
"""Most events that are shown as explanation of the sentence."""
LONGEST: Final = 300
"""Most characters of a reason in the sentence; the event shows all of it."""

_STEP: Final = re.compile(r", step \d+(?=,|$)", re.ASCII)
"""The step in the launcher's line. The page shows the step beside the sentence, from one source, which is newer."""
REFUSED: Final = "the newest host list is refused"
STILL: Final = "no step for"
"""Text in the launcher's line for as long as an event's problem lasts, by event."""


class Verdict(NamedTuple):
    """What is said of a job."""

    level: str
    """ok, warn, bad or info."""
    text: str
    """One sentence."""
    do: str = ""
    """What to do; "" for nothing."""


def needs_attention(row: Row) -> bool:
    """Whether a row needs attention."""
    return row.level == BAD or row.kind.attention


def duration(seconds: float) -> str:
    """Format a duration: ``9.5 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if not 60 <= seconds < math.inf:  # a damaged journal may have any time
        return f"{seconds:.3g} s" if abs(seconds) >= SHORTEST_S or math.isnan(seconds) else "0 s"
    whole = round(seconds)
    for size, high, low, name in ((3600, 60, 1, "min s"), (86400, 3600, 60, "h min"), (0, 86400, 3600, "d h")):
        if whole < size or not size:
            first, second = name.split()
            rest = whole % high // low
            return f"{whole // high} {first}" + (f" {rest} {second}" if rest else "")
    raise AssertionError("days take everything")


INITIAL_LEVELS: Final[Mapping[str, str]] = {"done": OK, "failed": BAD, "lost": BAD, "sleeps": WARN, "stopped": WARN}
"""The level of a job before its journal is read, by its state; for other states it is not known yet."""


def initial_verdict(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict while a long journal is being read, from the job's row in the list of jobs."""
    where = [f"step {summary['step']:,}"] if summary["step"] is not None else []
    where += [f"a world of {counted(summary['size'], 'rank')}"] if summary["size"] else []
    text = f"By the end of its journal: {summary['told']}{'; ' if where else ''}{' in '.join(where)}."
    level = INITIAL_LEVELS.get(summary["state"], INFO)
    word = {"word": "READING"} if level == INFO else {}
    return {"job": summary["name"], "level": level, "text": f"{text} The rest is being read.", "do": "", **word}


def outcome(report: JobReport) -> Verdict:
    """Return the verdict on a run that has ended."""
    end = next((row for row in reversed(report.rows) if row.event == "finished"), None)
    after = f"after {duration(report.duration_s)}" + (f" at step {report.steps:,}" if report.steps else "")
    cause = "" if end is None else end.cause
    reason = f": {cause}" if cause else ""
    fault = _newest(report, since=0.0)
    if report.code == 0:
        more = cause.removeprefix("training is done").removeprefix("; ")
        return Verdict(OK, f"Training is done {after}{f': {more}' if more else ''}. {cost(report)}")
    if end_of(report.code) == SLEEPS:
        return Verdict(WARN, f"The job sleeps, and its launcher has ended {after}{reason}. {cost(report)}")
    if end_of(report.code) == STOPPED:
        recent = _newest(report, since=report.duration_s - RECENT_S)
        by, _, more = cause.removeprefix("stopped ").partition("; ")
        how = f"{after}{reason}" if by == cause else f"{by} {after}{f': {more}' if more else ''}"
        return Verdict(WARN, f"The job was stopped {how}. {cost(report)}{_last_event(recent, report)}", _do(recent))
    code = "" if report.code is None else f" with exit code {report.code}"
    named = fault is not None and bool(fault.hosts) and advice.host_of(fault) in reason
    last_event = "" if named else _last_event(fault, report)
    return Verdict(BAD, f"The job failed{code} {after}{reason}. {cost(report)}{last_event}", advice.of_end(end, fault))


def cost(report: JobReport) -> str:
    """Return a sentence about the cost of changes and faults."""
    down = total(
        row.downtime_s for row in report.rows if row.event == "slept" or (row.event == "resized" and row.before)
    )
    if not down.number:
        return "The world never changed." if report.resizes else "No world was formed."
    changes, again = f"{counted(down.number, 'change').capitalize()} of the world", steps_again(report)
    steps = f"{'at least ' if again.unknown else ''}{counted(int(again.known), 'step')} had to be done again"
    if down.nothing_known:
        more = "" if again.nothing_known else f", and {steps}"
        return f"What {changes} cost is not known{more}."
    steps = "how many steps had to be done again is not known" if again.nothing_known else steps
    least, which = ("at least ", f" (of {down.unknown} that is not known)") if down.unknown else ("", "")
    return f"{changes} cost {least}{duration(down.known)} without a step{which}, and {steps}."


def of_now(report: JobReport, live: Mapping[str, Any] | None, *, now: float, last: float, asleep: bool) -> Verdict:
    """Return the verdict on the present state. ``live``: the launcher's answer, None without one; ``last``: when the
    journal's newest line was written (Unix seconds, like ``now``).
    """
    if report.code is not None:
        return outcome(report)
    if live is None:
        return _without_launcher(report, ago=now - last)
    text = _STEP.sub("", str(live.get("said", "")))
    hosts: Sequence[Mapping[str, Any]] = live.get("hosts", ())
    training = sum(bool(host.get("trains")) for host in hosts)
    listed = sum(bool(host.get("listed") or host.get("trains")) for host in hosts)
    count = f"{training} of {counted(listed, 'host')}: " if listed else ""
    waits = asleep or text.startswith(("waiting", "asleep", "sleep"))
    alone = "TRAINS ALONE" in text
    blocked = any(host.get("state") == "blocked" for host in hosts)
    fault = _newest(report, since=report.duration_s - RECENT_S)
    if fault is None and REFUSED in text:  # it is journalled once, however long it lasts
        fault = next((row for row in reversed(report.rows) if row.event == "refused"), None)
    level = BAD if alone else WARN if waits or blocked or fault else OK
    do = "" if fault is None or _is_over(fault, report, text, waits=waits) else _do(fault)
    if waits and fault is None:
        do = advice.of_wait(text)
    return Verdict(level, f"{count}{text.removesuffix('.')}.{_last_event(fault, report)}", do)


def _is_over(row: Row, report: JobReport, text: str, *, waits: bool) -> bool:
    """Whether a row no longer needs attention, by the launcher's answer."""
    if row.event == "refused":
        return REFUSED not in text
    if row.event == "stalled":
        return not waits and STILL not in text
    return row.event == "not sealed" and any(each.event == "sealed" and each.at > row.at for each in report.rows)


def _without_launcher(report: JobReport, *, ago: float) -> Verdict:
    fault = _newest(report, since=report.duration_s - RECENT_S)
    if ago < LATE_S:
        text = f"The journal grows; the launcher cannot be asked from here.{_last_event(fault, report)}"
        return Verdict(INFO if fault is None else WARN, text, _do(fault))
    text = f"No launcher answers, and none has ended this run; the last line of its journal is {duration(ago)} old."
    text = f"{text} It was killed, or runs where this page cannot ask it. {cost(report)}{_last_event(fault, report)}"
    return Verdict(BAD, text, " ".join(filter(None, (advice.NO_LAUNCHER, _do(fault)))))


def _newest(report: JobReport, *, since: float) -> Row | None:
    """The last fault, else the last event that needs attention."""
    recent = [row for row in reversed(report.rows) if row.at >= since and row.event != "finished"]
    faults = (row for row in recent if row.level == BAD)
    return next(faults, None) or next((row for row in recent if row.kind.attention), None)


def _last_event(row: Row | None, report: JobReport) -> str:
    if row is None:
        return ""
    what = "Last fault" if row.level == BAD else "Last event"
    more = f" and {len(row.hosts) - NAMED} more" if len(row.hosts) > NAMED else ""
    where = f" on {', '.join(row.hosts[:NAMED])}{more}" if row.hosts else ""
    text = row.details
    shown = f": {text[:LONGEST]}{'…' if len(text) > LONGEST else ''}" if text else ""
    return f" {what}, {duration(report.duration_s - row.at)} ago: {row.title}{where}{shown}."


def _do(row: Row | None) -> str:
    return "" if row is None else advice.advice(row)


def why(report: JobReport) -> list[int]:
    """Return the places of the rows that explain a failure or a fault, the newest first.

    Faults come before events that only need attention. Repeated faults of one kind on one host appear once.
    """
    newest_first = list(enumerate(report.rows))[::-1]
    faults = (pair for pair in newest_first if pair[1].level == BAD and pair[1].event != "finished")
    others = (pair for pair in newest_first if pair[1].kind.attention)
    places: dict[tuple[tuple[str, ...], str], int] = {}
    for at, row in itertools.chain(faults, others):
        if len(places) < SHOWN:
            places.setdefault((row.hosts, advice.advice(row)), at)
    return list(places.values())
