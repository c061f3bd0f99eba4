"""How long too few processes are borne: until ``--elastic-timeout`` is over, or not at all."""

from __future__ import annotations

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.rules.membership.membership import Decision
from hvd_elastic_ext.launcher.state import orders
from hvd_elastic_ext.launcher.state.job import JobState


def enough(job: JobState) -> None:
    """A world forms, or stands."""
    job.shortage.since = None


def short(job: JobState, decision: Decision) -> str | None:
    """Why nobody trains and nobody can: too few slots may work. None if that is not so."""
    if job.standing:
        return None
    limits, begun = job.rules.limits, job.world.begun
    free = len(orders.without_delay(job, job.wanted))
    if limits.size(free, begun=begun):
        return None
    need = f"slots needed to go on: {limits.least}" if begun else f"slots needed: {limits.start}"
    return f"{need}, usable: {free} ({_names(job)}): {decision.reason}"


def lost(job: JobState, decision: Decision) -> JobFailed | None:
    """Why the job is over, if it is: nothing is left to wait for, or it was waited for long enough."""
    if job.standing:
        enough(job)
        return None
    now, rules = job.now, job.rules
    job.shortage.since = now if job.shortage.since is None else job.shortage.since
    limits, begun = rules.limits, job.world.begun
    free = len(orders.without_delay(job, job.wanted))
    # What only has to be started again is no loss: that is what a commit is kept for.
    if begun and rules.below_min == "fail" and not limits.size(free, begun=True):
        there = f"slots needed to go on: {limits.least}, usable: {free}"
        return JobFailed(f"{there} ({_names(job)}); --below-min is fail: {decision.reason}")
    if now - job.shortage.since < rules.elastic_timeout_s:
        return None
    need = limits.least if begun else limits.start
    there = f"slots needed: {need}, published: {job.fleet.hosts.slots} ({_names(job)})"
    return JobFailed(f"{there} after {rules.elastic_timeout_s:g} s, --elastic-timeout: {decision.reason}")


def _names(job: JobState) -> str:
    return ", ".join(job.fleet.hosts.names) or "no host"
