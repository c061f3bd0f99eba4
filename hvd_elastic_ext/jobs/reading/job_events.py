"""Kubernetes Events and journal lines of a job in one list by time. Pure.

Clocks of nodes differ a little, and monotonic clocks of two launchers cannot be compared: each launcher's lines get
their times from the clock that its journal began with.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple

from hvd_elastic_ext.core.journal import FILE, FOLDERS, Record
from hvd_elastic_ext.jobs.rendering.objects import LAUNCHER, WORKER, Body
from hvd_elastic_ext.report.job_report import Row, build_report
from hvd_elastic_ext.report.table import hosts_text, size_text

CLUSTER, JOB = "cluster", "job"
_OF_HOSTS: Final = "Hosts"
"""How the reasons of the daemon's own events begin."""
_TIMES: Final = ("lastTimestamp", "eventTime", "firstTimestamp")
_STAMPED: Final = re.compile(r"(\d\S+?(?:Z|[+-]\d\d:\d\d)) hvd-elastic: (.*)", re.ASCII)


class EventLine(NamedTuple):
    """One event of a job."""

    at: float
    """Unix seconds."""
    source: str
    """The cluster, or the job's launcher."""
    event: str
    who: str
    """The pods or hosts concerned."""
    why: str
    """The message."""


def of_cluster(events: Iterable[Body], job: str, pods: Iterable[str]) -> list[EventLine]:
    """Return the Events about a job, its StatefulSet and its pods, also of deleted pods."""
    named = re.compile(rf"{re.escape(job)}-({LAUNCHER}|{WORKER})(-.+)?|{re.escape(job)}")
    pod_names = set(pods)
    lines = []
    for each in events:
        about = each.get("involvedObject") or {}
        name = str(about.get("name"))
        if name in pod_names or named.fullmatch(name):
            lines.append(_of_event(each, "" if name == job else name))
    return lines


def why_not_made(warnings: Iterable[EventLine], job: str, *, since: float) -> str:
    """Return the newest warning about what makes the pods of a job; "" if there is none. ``since``: Unix seconds;
    earlier ones are of another job of this name."""
    makers = ("", f"{job}-{LAUNCHER}", f"{job}-{WORKER}")
    fitting = [
        each for each in warnings if each.who in makers and each.at >= since and not each.event.startswith(_OF_HOSTS)
    ]
    return max(fitting, key=lambda each: each.at).why if fitting else ""


def _of_event(body: Body, who: str) -> EventLine:
    series = body.get("series") or {}
    times = (series.get("lastObservedTime"), *(body.get(name) for name in _TIMES))
    stamp = next(filter(None, times), None) or body["metadata"].get("creationTimestamp")
    count = series.get("count") or body.get("count") or 1
    why = " ".join(str(body.get("message") or "").split())
    return EventLine(
        unix(stamp), CLUSTER, str(body.get("reason") or ""), who, f"{why} (x{count})" if count > 1 else why
    )


def of_journal(records: Sequence[Record]) -> list[EventLine]:
    """Return the rows of the journal's report, with times from the clock of the launcher that wrote them."""
    lines = []
    for number, part in enumerate(_launchers(records)):
        first = min(part, key=lambda record: record.mono)
        begins = next((record for record in part if record.event == "started"), None)
        if begins is not None:
            again = " again" * bool(number)
            lines.append(EventLine(begins.t, JOB, "started", "", f"the launcher was started{again}"))
        lines += [_of_row(row, first.t) for row in build_report(part).rows]
    return lines


def _launchers(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Yield the records of each launcher: monotonic clocks of two launchers cannot be compared."""
    starts = [number for number, record in enumerate(records) if record.event == "started"]
    for begin, end in pairwise(sorted({0, *starts, len(records)})):
        yield records[begin:end]


def _of_row(row: Row, begin: float) -> EventLine:
    parts = [row.cause, size_text(row), row.note]
    if row.steps_lost:
        parts.append(f"{row.steps_lost} steps done again")
    return EventLine(begin + row.at, JOB, row.event, hosts_text(row), "; ".join(filter(None, parts)))


def of_output(lines: Iterable[str]) -> list[EventLine]:
    """Return the launcher's own lines from its output with times, for a journal that cannot be read."""
    found = (_STAMPED.match(line) for line in lines)
    return [EventLine(unix(each[1]), JOB, "said", "", each[2].strip()) for each in found if each]


def in_order(*parts: Iterable[EventLine]) -> list[EventLine]:
    """Return all events, the oldest first."""
    return sorted((each for part in parts for each in part), key=lambda each: each.at)


def unix(stamp: object) -> float:
    """Return a Kubernetes time in Unix seconds; 0 for an invalid one."""
    text = re.sub(r"(\.\d{6})\d+", r"\1", str(stamp)).replace("Z", "+00:00")
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def journal_of(options: Sequence[str], job: str) -> str:
    """Return the path of the journal of a launcher with these options."""
    given = _values(options)
    return given.get("--journal") or f"{given.get('--state-dir') or f'{FOLDERS}/{job}'}/{FILE}"


def _values(words: Sequence[str]) -> Mapping[str, str]:
    values = {}
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name in ("--journal", "--state-dir"):
            values[name] = value if equals else following
    return values
