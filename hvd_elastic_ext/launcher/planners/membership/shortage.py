"""How long a job may have too few processes: ``--elastic-timeout``, or no time at all with ``--below-min fail``."""

from __future__ import annotations

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.planners.health import blame
from hvd_elastic_ext.launcher.rules.membership.next_world import Decision
from hvd_elastic_ext.launcher.state.job import JobState


def why_short(job: JobState, decision: Decision) -> str | None:
    """Why no world can form: too few usable slots. None if a world stands or can form."""
    if job.standing:
        return None
    limits, begun = job.options.limits, job.world.begun
    free = _free(job)
    if limits.size(free, begun=begun):
        return None
    need = f"slots needed to go on: {limits.least}" if begun else f"slots needed: {limits.start}"
    return f"{need}, usable: {free} ({_names(job)}): {decision.reason}"


def timed_out(job: JobState, decision: Decision) -> JobFailed | None:
    """Why the job fails for lack of processes; None if it may wait longer."""
    return _explained(job, _timed_out(job, decision))


def _timed_out(job: JobState, decision: Decision) -> JobFailed | None:
    if job.standing:
        job.short_since = None
        return None
    now, options = job.now, job.options
    job.short_since = now if job.short_since is None else job.short_since
    limits, begun = options.limits, job.world.begun
    free = _free(job)
    # Slots with a process that only has to be started again count as free: a commit is kept for that.
    if begun and options.below_min == "fail" and not limits.size(free, begun=True):
        there = f"slots needed to go on: {limits.least}, usable: {free}"
        return JobFailed(f"{there} ({_names(job)}); --below-min is fail: {decision.reason}")
    if now - job.short_since < options.elastic_timeout_s:
        return None
    need = limits.least if begun else limits.start
    there = f"slots needed: {need}, published: {job.fleet.hosts.slots} ({_names(job)})"
    blocked = blame.left_out(job)
    out = f"; left out: {', '.join(blocked)}" if blocked else ""
    return JobFailed(f"{there} after {options.elastic_timeout_s:g} s, --elastic-timeout: {decision.reason}{out}")


def _explained(job: JobState, lost: JobFailed | None) -> JobFailed | None:
    """The failure of a job that never formed its first world, with the checkpoint that it waited for."""
    state = job.restore
    why = state.why
    if why is None and state.expects is not None and state.path is None:
        remedy = "add a host that has it, or name another --checkpoint-dir to start from the beginning"
        why = f"{state.expects} was made, and no host that came has it; {remedy}"
    if lost is None or why is None or job.world.begun:
        return lost
    return JobFailed(f"{why} (for --elastic-timeout {job.options.elastic_timeout_s:g} s)")


def _free(job: JobState) -> int:
    """Wanted seats in which a process may start now: no restart delay applies."""
    return sum(job.fleet.restart_delays.over(seat, job.now) for seat in job.wanted)


def _names(job: JobState) -> str:
    return ", ".join(job.fleet.hosts.names) or "no host"
