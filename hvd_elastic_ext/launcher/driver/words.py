"""What planners say: a wait as a value, with its line, and names cut short.

A capability says what the job waits for there in a function ``waits(job)``; ``reporting/all_waits.py`` has their order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from hvd_elastic_ext.core.pace import WAIT

log = logging.getLogger(__name__)


SOON_S: Final = 4.0
"""Waits and silences that have lasted this long are told: users take a silence of more than 5 s for a hang."""


class Wait(NamedTuple):
    """What a job waits for, how long at most, and what follows."""

    what: str
    until: float | None = None
    """When it ends at the latest (mono); None if it has no limit."""
    then: str = ""
    """What follows a limit."""
    since: float | None = None
    """When it began (mono), if that was before it was seen."""
    ends: str = "Ctrl-C ends the job"
    """What ends a wait without a limit."""
    in_full: str = ""
    """What the status says in place of :attr:`what`, which leaves out what the log has told; empty if the same."""

    @property
    def why(self) -> str:
        """What makes it another wait if it changes."""
        return self.what if self.until is not None else f"{self.what}; {self.ends}"


def line(wait: Wait, now: float) -> str:
    """One wait in one line. Pure."""
    if wait.until is None:
        return f"waiting: {wait.what}; no limit: {wait.ends}"
    return f"waiting: {wait.what}; at most {max(0.0, wait.until - now):.0f} s more{wait.then}"


def log_wait(wait: Wait, now: float) -> None:
    """Log a wait. Callers do so at the pace of :mod:`hvd_elastic_ext.core.pace`."""
    log.info("%s", line(wait, now), extra=WAIT)


NAMES: Final = 4
"""Most names in one line."""


def first_few(names: Iterable[object], most: int = NAMES) -> str:
    """The first ``most`` of these, and how many more there are."""
    texts = [str(name) for name in names]
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")
