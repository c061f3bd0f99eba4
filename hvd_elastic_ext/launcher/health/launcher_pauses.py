"""Pauses of the launcher itself: messages of that time are not read yet, so silence and waits count less.

A pause that is long, compared with the time that hosts may be silent, is logged at once. On a loaded machine the
launcher is often late by a second, which changes nothing: such pauses are counted, and logged together at most once a
minute.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState

log = logging.getLogger(__name__)


LONG_S: Final = 5.0
"""A pause this long is logged at once, or one of :data:`SHARE` of ``--heartbeat-timeout``, if that is less."""
SHARE: Final = 0.4
SPAN_S: Final = 60.0
"""Short pauses within this time are logged together, and at most this often."""
SEVERAL: Final = 3
"""This many short pauses are logged: fewer need no action."""


class LauncherPause(NamedTuple):
    """A short pause that is not logged yet: its end (mono) and its length."""

    at: float
    seconds: float


class PauseReport(NamedTuple):
    """``line``: the line to log, or empty. ``short``: pauses that are not logged yet, for the next call."""

    line: str
    short: tuple[LauncherPause, ...]


def report_pause(
    now: float, seconds: float, short: Sequence[LauncherPause], *, heartbeat_timeout_s: float, logged_at: float | None
) -> PauseReport:
    """The line about a pause of ``seconds`` that ends now. ``logged_at``: when pauses were logged last (mono)."""
    if seconds >= min(LONG_S, SHARE * heartbeat_timeout_s):
        return PauseReport(
            f"the launcher itself was paused for {seconds:.1f} s; no host is blamed for that", tuple(short)
        )
    known = (*(pause for pause in short if pause.at > now - SPAN_S), LauncherPause(now, seconds))
    if len(known) < SEVERAL or (logged_at is not None and now < logged_at + SPAN_S):
        return PauseReport("", known)
    longest = max(pause.seconds for pause in known)
    what = f"the launcher itself was paused {len(known)} times in {SPAN_S:.0f} s, for {longest:.1f} s at most"
    return PauseReport(f"{what}: this machine has too little processor time for it; no host is blamed for that", ())


# --- state


@dataclass(slots=True)
class LauncherPauses:
    """Pauses of the launcher itself that are short, and not logged yet."""

    short: tuple[LauncherPause, ...] = ()
    logged_at: float | None = None
    """When pauses were logged last (mono)."""


# --- what happens


def launcher_paused(job: JobState, seconds: float) -> None:
    """Move the times since which messages are awaited by ``seconds``, and those that are compared with them."""
    state, limit_s = job.launcher_pauses, job.options.heartbeat_timeout_s
    line, state.short = report_pause(
        job.now, seconds, state.short, heartbeat_timeout_s=limit_s, logged_at=state.logged_at
    )
    if line:
        log.warning("%s", line)
        state.logged_at = job.now
    now = job.now
    job.fleet.newer_lives = {
        name: each._replace(since=min(now, each.since + seconds)) for name, each in job.fleet.newer_lives.items()
    }
    for agent in job.roster.agents.values():
        if agent.last_message_at:
            agent.last_message_at = min(now, agent.last_message_at + seconds)
        # What was seen after the last message stays after it.
        agent.inherited_at = min(now, agent.inherited_at + seconds)
        agent.unlisted_at = min(now, agent.unlisted_at + seconds)
    job.faults.unexplained = [each._replace(until=each.until + seconds) for each in job.faults.unexplained]
    job.roster.commits.launcher_paused(seconds)
    if job.transfers.current is not None:
        job.transfers.current.began += seconds
    job.custody.may_end_since = {host: since + seconds for host, since in job.custody.may_end_since.items()}
    for worker in job.roster.workers.values():
        worker.killed_at += seconds if worker.killed is not None else 0.0
        worker.moved_at = min(now, worker.moved_at + seconds) if worker.moved_at else 0.0
    job.liveness.moved.clear()
