"""What to do about an event, for a reader who sees the job for the first time. Pure.

The journal says what happened, and on which host. The remedies are those of docs/troubleshooting.md.
"""

from __future__ import annotations

import re
from typing import Final

from hvd_elastic_ext.core.events import FAULTS, Remedies
from hvd_elastic_ext.report.job_report import Row

_SEAT: Final = re.compile(r"\[\d+\]$", re.ASCII)
_IN_REASON: Final = re.compile(r"(?:^|\bon )([\w.:-]+)\[\d+\]", re.ASCII)
"""Such as "rank 1 on h3[0]"."""
_NAME: Final = re.compile(r"[\w.:-]+", re.ASCII)
"""A valid host name. A journal may contain any text, and users paste commands."""
_NO_HOST: Final = "that host"
_COMMAND: Final = re.compile(r"`[^`]*`")


SHORTAGES: Final[Remedies] = (
    (
        r"^no host |slots needed|processes ready|more than all hosts have|for a first host",
        "Add hosts to the list, or ask for less: a smaller -np, or --min-np for the start. `hvd-elastic hosts list` "
        "shows those that are known, and why one is blocked.",
    ),
)
"""Remedies by patterns in the line of a wait, and in the last line of a job without a fault."""
AFTER_FAILURE: Final = (
    "Fix what the reason names; the same command then continues from the newest checkpoint, if there is one."
)
NO_LAUNCHER: Final = "`hvd-elastic status` says whether a launcher runs; the same command continues."


def without_slot(seat: str) -> str:
    """Return the host of a seat such as ``h3[0]``."""
    return _SEAT.sub("", seat)


def host_of(row: Row) -> str:
    """Return the first host concerned; for the end of a process, the host that its reason names, or ""."""
    if row.hosts:
        return without_slot(row.hosts[0])
    match = _IN_REASON.search(row.cause)
    return match[1] if match else ""


def advice(row: Row) -> str:
    """Return what to do about a row; "" if nothing is to be done."""
    return _fitting(row.kind.remedies, f"{row.title}; {row.details}", host_of(row))


def of_end(end: Row | None, fault: Row | None) -> str:
    """Return what to do about a failed job: by its last line, or else by its last fault."""
    host = "" if end is None else host_of(end) or ("" if fault is None else host_of(fault))
    found = "" if end is None else _fitting((*FAULTS, *(SHORTAGES if fault is None else ())), end.cause, host)
    return found or ("" if fault is None else advice(fault)) or AFTER_FAILURE


def of_wait(reason: str) -> str:
    """Return what to do while a job waits without a fault: by its launcher's line; "" if the wait ends by itself."""
    return _fitting(SHORTAGES, reason, "")


def _fitting(remedies: Remedies, words: str, host: str) -> str:
    found = next((remedy for pattern, remedy in remedies if re.search(pattern, words)), "")
    if _NAME.fullmatch(host):
        return found.replace("{host}", host)
    return _COMMAND.sub(lambda command: command[0].replace("{host}", "HOST"), found).replace("{host}", _NO_HOST)
