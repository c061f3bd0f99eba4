"""The job at this moment as values, for programs: ``hvd-elastic status --json``."""

from __future__ import annotations

from typing import Any, Final

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.reporting.waits import Wait, waits_for

STARTS, TRAINS, WAITS, SLEEPS, ENDS = "starts", "trains", "waits", "sleeps", "ends"
STATES: Final = (STARTS, TRAINS, WAITS, SLEEPS, ENDS)
"""States of a job whose launcher runs."""


def state_of(job: JobState) -> str:
    """One of :data:`STATES`. Whether it sleeps, the job's state does not know."""
    if job.ending or job.before_exit.why is not None:
        return ENDS
    if not job.world.begun:
        return STARTS
    return TRAINS if wait_of(job) is None else WAITS


def wait_of(job: JobState) -> Wait | None:
    """What the job waits for; None if it trains."""
    return waits_for(job, brief=False)


def wait_json(wait: Wait | None, now: float) -> dict[str, Any] | None:
    """A wait as JSON: ``left_s`` is null if it has no limit; ``then``: what follows the limit, or ends the wait."""
    if wait is None:
        return None
    left_s = None if wait.until is None else round(max(0.0, wait.until - now), 3)
    return {"what": wait.what, "left_s": left_s, "then": wait.ends if left_s is None else wait.then.removeprefix(", ")}


def numbers(job: JobState) -> dict[str, Any]:
    """World, progress and newest checkpoint; null where nothing is known."""
    members = job.roster.present(job.world.members)
    times = [worker.step_s for worker in members if worker.step_s]
    path, step = job.checkpoints.newest
    return {
        "generation": job.generation,
        "size": len(members) if job.standing else 0,
        "step": max((worker.step for worker in members), default=0) or None,
        "steps_per_s": round(1 / max(times), 6) if times else None,
        "checkpoint": None if path is None else {"path": path, "step": step},
    }
