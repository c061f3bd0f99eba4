"""What each change of the world cost: told with it, once the new world has done its first step.

The journal's line of a change is written a moment after the change then, with
the time of the change itself. Where no process ever tells of steps it is
written at once, and what it cost stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.core.clock import Clock
from hvd_elastic_ext.core.journal import Journal
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life
from hvd_elastic_ext.launcher.state.actions import Record
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.membership import Change
from hvd_elastic_ext.launcher.state.roster import seconds

UNTOLD_S: Final = 10.0
"""The longest that a line waits for the first step."""
UNTOLD_BY_OTHERS_S: Final = 120.0
"""The same where other processes do it: they have to load everything first."""


def stopped(job: JobState) -> None:
    """A process has ended, and in its place another one is to go on: until then nobody trains."""
    job.resize.stopped_at = job.now if job.resize.stopped_at is None else job.resize.stopped_at


def changed(job: JobState, first: Life, *, lost: int | None, **fields: Any) -> None:
    """A world has formed; ``first`` is its rank 0. ``lost``: steps that it does again, None if none is known."""
    close(job)
    said, job.resize.lost = job.resize.lost, []
    # Where somebody was lost and nobody says what it rolled back, steps may have been lost all the same.
    known = said or not (fields["failed"] or fields["cause"] == "start")
    rolled_back = max(said, default=0) if known and job.resize.steps_are_told else None
    fields["steps_lost"] = max((n for n in (lost, rolled_back) if n is not None), default=None)
    stopped_at, job.resize.stopped_at = job.resize.stopped_at, None
    now = job.now
    job.resize.change = Change(now, job.generation, first, fields, stopped_at=stopped_at)
    if not job.resize.steps_are_told or fields["cause"] == "start":
        close(job)


def rolled_back(job: JobState, steps: Any) -> None:
    """A process went back so many steps."""
    if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 0:
        if job.resize.change is None:
            job.resize.lost.append(steps)
        else:
            job.resize.change.fields["steps_lost"] = max(job.resize.change.fields["steps_lost"] or 0, steps)


def going_on(job: JobState, life: Life, generation: int, message: Mapping[str, Any]) -> None:
    """A process has done its first step in the world of ``generation``."""
    job.resize.steps_are_told = True
    change, pause_s = job.resize.change, seconds(message.get("pause_s"))
    if change is None or change.generation != generation:
        return
    if pause_s is not None:
        change.pause_s = max(change.pause_s or 0.0, pause_s)
    elif change.stopped_at is not None and life == change.first:
        change.pause_s = job.now - change.stopped_at
    if life == change.first:
        close(job)


def look(job: JobState) -> None:
    """Give up waiting for a first step."""
    if job.resize.change is None:
        return
    patience_s = UNTOLD_S if job.resize.change.stopped_at is None else UNTOLD_BY_OTHERS_S
    if job.now - job.resize.change.at >= patience_s:
        close(job)


def untold(job: JobState) -> int | None:
    """The generation of the world whose line is still to be written."""
    return None if job.resize.change is None else job.resize.change.generation


def to_json(job: JobState, now: float, *, wall: float) -> dict[str, Any] | None:
    """The line that is still to be written, for the next launcher, see :func:`tell`."""
    change = job.resize.change
    if change is None:
        return None
    return {"generation": change.generation, "at": wall - (now - change.at), "fields": change.fields}


def close(job: JobState) -> None:
    """Write what there is."""
    change, job.resize.change = job.resize.change, None
    if change is None:
        return
    pause = None if change.pause_s is None else round(change.pause_s, 3)
    job.do(Record("resized", change.generation, {**change.fields, "downtime_s": pause}, change.at))


def tell(noted: Any, *, journal: Journal, clock: Clock) -> None:
    """Write the line that the last launcher had not written when it ended; what the change cost in time is unknown."""
    match noted:
        case {"generation": int(generation), "at": float(at), "fields": {"steps_lost": _} as fields}:
            ago = max(0.0, clock.wall() - at)
            journal.record("resized", generation=generation, at_mono=clock.mono() - ago, **fields, downtime_s=None)
