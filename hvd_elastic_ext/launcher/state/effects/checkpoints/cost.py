"""The interval between checkpoints, chosen by what they cost the job and how often something fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_elastic_ext.launcher.checkpoints import interval
from hvd_elastic_ext.launcher.checkpoints.interval import SealCost
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.rules.checkpoints.failure_rate import Failures
from hvd_elastic_ext.launcher.rules.checkpoints.slowdown import DEFAULT_SLOWDOWN


def resumed_from(job: JobState, facts: Mapping[str, Any]) -> None:
    """Training resumes from a checkpoint with a manifest that holds ``facts``: see :func:`facts`.

    Unless the job ended with it, a failure has cost every commit in memory since then, and counts.
    """
    known = Failures.of(facts.get("failures"))
    job.cost.failures = known if facts.get("ended") is True else known.failed()
    job.cost.watched_from = job.now


def facts(job: JobState, *, ended: bool) -> dict[str, Any]:
    """The entries in the manifest. ``ended``: the job ends, or sleeps, with this commit."""
    return {"failures": _watched(job).to_json(), "ended": ended}


def measured(job: JobState, durable_s: float, slowed: float | None, *, stall_s: float = 0.0) -> None:
    """Take in the cost of a checkpoint.

    ``slowed``: share by which steps were slower (None: not measured). ``stall_s``: seconds in which training stood.
    """
    state = job.cost
    usual = state.seals[-1].slowed if state.seals else DEFAULT_SLOWDOWN
    seal = SealCost(stall_s, durable_s, usual if slowed is None else slowed)
    state.seals = [*state.seals[1 - interval.MAX_SAMPLES :], seal]
    if job.options.durability is not None and job.options.durability.every.auto:
        _choose(job)


def _choose(job: JobState) -> None:
    state = job.cost
    before = state.choice
    state.choice = interval.checkpoint_interval(state.seals, _watched(job).rate(), before=before)
    if state.choice is not before:
        reason = f"checkpoints every {state.choice.seconds:.3g} s: {state.choice.reason}"
        job.record("interval", seconds=round(state.choice.seconds, 3), reason=reason)


def _watched(job: JobState) -> Failures:
    state = job.cost
    state.failures, state.watched_from = state.failures.watched(job.now - state.watched_from), job.now
    return state.failures
