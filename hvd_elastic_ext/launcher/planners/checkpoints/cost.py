"""What seals were seen to cost a running job, how often something failed, and so how often one is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.launcher.rules.checkpoints import interval
from hvd_elastic_ext.launcher.rules.checkpoints.failure_rate import Failures
from hvd_elastic_ext.launcher.rules.checkpoints.interval import Seal
from hvd_elastic_ext.launcher.rules.checkpoints.slowdown import UNKNOWN
from hvd_elastic_ext.launcher.state.job import JobState

FIRST_S: Final = 5.0
"""How long a commit is thought to take to become durable before any has."""


def interval_s(job: JobState) -> float:
    """From the start of one seal to that of the next."""
    return job.cost.choice.seconds


def durable_s(job: JobState) -> float:
    """How long a commit took to become durable, the last time; a guess at first."""
    return job.cost.seals[-1].durable_s if job.cost.seals else FIRST_S


def began_with(job: JobState, facts: Mapping[str, Any]) -> None:
    """Training goes on from a checkpoint at whose seal ``facts`` were noted: see :meth:`facts`.

    Unless the job was told to end with it, something has cost every commit in memory since then: such failures
    are what checkpoints are for.
    """
    known = Failures.of(facts.get("failures"))
    job.cost.failures = known if facts.get("ended") is True else known.failed()
    job.cost.watched_from = job.now


def facts(job: JobState, *, ended: bool) -> dict[str, Any]:
    """What is noted at a seal. ``ended``: with its commit the job ends, or sleeps."""
    return {"failures": _watched(job).told(), "ended": ended}


def sealed(job: JobState, durable_s: float, slowed: float | None, *, stall_s: float = 0.0) -> None:
    """A seal has taken so long, and made steps slower by that share (None: that could not be measured).

    ``stall_s``: seconds of it in which training stood still.
    """
    state = job.cost
    usual = state.seals[-1].slowed if state.seals else UNKNOWN
    seal = Seal(stall_s, durable_s, usual if slowed is None else slowed)
    state.seals = [*state.seals[1 - interval.LATEST :], seal]
    if job.rules.durability is not None and job.rules.durability.every.auto:
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
    now = job.now
    watched, state.watched_from = state.failures.watched(now - state.watched_from), now
    state.failures = watched
    return watched
