"""The journal line of each change of the world, with its cost.

The line waits for the first step of the new world, and has the time of the change. If no process ever reports steps, it
is written at once, and the cost stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.launcher.driver.actions import Record

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId


UNREPORTED_S: Final = 10.0
"""Longest wait of the line about a new world for the first step, unless steps are long."""
UNREPORTED_STEPS: Final = 3.0
"""If steps are long, the wait is this many of them."""
UNREPORTED_BY_OTHERS_S: Final = 120.0
"""As :data:`UNREPORTED_S`, for new processes: they have to load everything first."""


@dataclass(slots=True)
class Change:
    """A change of the world whose cost is not written yet."""

    at: float
    generation: int
    first: ProcessId
    """Rank 0, whose first step completes the change."""
    fields: dict[str, Any]
    pause_s: float | None = None
    """The longest time without a step."""
    stopped_at: float | None = None
    """When the first process ended (mono), if no process lives on to report its pause."""
    step_s: float = 0.0
    """Seconds of a usual step; 0 if unknown."""
    begun: bool = False
    """Rank 0 is in its first step."""
    survivors: bool = False
    """Some members were in a world before, and report their pause."""

    @property
    def report_due(self) -> float:
        """When the line is written at the latest (mono)."""
        return self.at + max(
            UNREPORTED_S if self.stopped_at is None else UNREPORTED_BY_OTHERS_S, UNREPORTED_STEPS * self.step_s
        )


@dataclass(slots=True)
class Resize:
    """The cost of the newest change of the world."""

    change: Change | None = None
    steps_are_reported: bool = False
    lost: list[int] = field(default_factory=list)
    stopped_at: float | None = None

    def stopped(self, now: float) -> None:
        """A process has ended; training waits for its successor."""
        self.stopped_at = now if self.stopped_at is None else self.stopped_at

    @property
    def unrecorded(self) -> int | None:
        """The generation of the world whose journal line is not written yet."""
        return None if self.change is None else self.change.generation


# --- what happens


def changed(job: JobState, first: ProcessId, *, lost: int | None, **fields: Any) -> None:
    """A world has formed. ``first``: its rank 0. ``lost``: steps that it does again; None if unknown."""
    close(job)
    resize = job.resize
    reported, resize.lost = resize.lost, []
    # If a process was lost and no other one reports a roll-back, steps may still be lost.
    known = reported or not (fields["failed"] or fields["cause"] == "start")
    rolled_back = max(reported, default=0) if known and resize.steps_are_reported else None
    fields["steps_lost"] = max((n for n in (lost, rolled_back) if n is not None), default=None)
    members = job.roster.present(job.world.members)
    if (call := max([worker.call for worker in members], default=1)) > 1:
        fields["call"] = call
    # Each of those that were in a world before, if the engine keeps them, reports its own pause.
    survivors = job.in_place and any(worker.generation for worker in members)
    stopped_at = None if survivors else resize.stopped_at
    step_s = max([worker.step_s or 0.0 for worker in members], default=0.0)
    resize.change = Change(
        job.now, job.generation, first, fields, stopped_at=stopped_at, step_s=step_s, survivors=survivors
    )
    resize.stopped_at = None
    if not resize.steps_are_reported or fields["cause"] == "start":
        close(job)


def rolled_back(job: JobState, steps: Any) -> None:
    """A process has rolled back this many steps."""
    if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 0:
        if (change := job.resize.change) is None:
            job.resize.lost.append(steps)
        else:
            change.fields["steps_lost"] = max(change.fields["steps_lost"] or 0, steps)


def first_step(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """A process has done its first step in the world that it is in."""
    resize, pause_s = job.resize, finite_number(message.get("pause_s"))
    resize.steps_are_reported, worker.step_came = True, job.now
    change = resize.change
    if change is None or change.generation != worker.generation:
        return
    first = worker.life == change.first
    if pause_s is not None:
        change.pause_s = max(change.pause_s or 0.0, pause_s)
    elif change.stopped_at is not None and first:
        change.pause_s = job.now - change.stopped_at
    change.begun = change.begun or first
    # Rank 0 may be new, and the first to do a step.
    if change.begun and (change.pause_s is not None or not change.survivors):
        close(job)


def look(job: JobState) -> None:
    """Write the line without a first step if that takes too long."""
    if (change := job.resize.change) is not None and job.now >= change.report_due:
        close(job)


def close(job: JobState) -> None:
    """Write the line with what is known."""
    change, job.resize.change = job.resize.change, None
    if change is None:
        return
    pause = None if change.pause_s is None else round(change.pause_s, 3)
    if pause is not None:
        job.scaling.paused(pause)
    job.do(Record("resized", change.generation, {**change.fields, "downtime_s": pause}, change.at))
