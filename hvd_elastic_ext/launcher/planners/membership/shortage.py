"""How long a job may have too few processes: ``--elastic-timeout``, or no time at all with ``--below-min fail``."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.shortage import free, host_names, remedy, unready, why_too_few
from hvd_elastic_ext.launcher.state.facts import health
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

MAX_NAMED: Final = 4
"""Most processes that are not ready in the reason."""


def plan(job: JobState) -> Plan:
    """End the job if it has had too few processes for too long, unless it is to sleep."""
    forms = job.decision.members is not None
    if not forms and (job.can_end_by_itself or job.clean_exits.until is not None):
        return NOTHING
    if forms or job.custody.holds_back:  # that wait has its own limit
        job.short_since = None
    if not forms and not job.before_sleep.will_sleep:
        job.fail(_explained(job, _timed_out(job)))
    return NOTHING


def _timed_out(job: JobState) -> JobFailed | None:
    """Why the job fails for lack of processes; None if it may wait longer."""
    if job.standing:
        job.short_since = None
        return None
    now, options = job.now, job.options
    job.short_since = now if job.short_since is None else job.short_since
    limits, begun = options.limits, job.world.begun
    usable = free(job)
    # Slots with a process that only has to be started again count as free: a commit is kept for that.
    if begun and options.below_min == "fail" and not limits.size(usable, begun=True):
        there = f"slots needed to go on: {limits.least}, usable: {usable}"
        return JobFailed(f"{there} ({host_names(job)}); --below-min is fail: {job.decision.reason}")
    if now - job.short_since < options.elastic_timeout_s:
        return None
    need = limits.least if begun else limits.start
    there = f"slots needed: {need}, published: {job.fleet.hosts.slots} ({host_names(job)})"
    why = [job.decision.reason, *why_too_few(job)]
    if blocked := health.blocked(job):
        why.append(f"blocked: {', '.join(blocked)}")
    why += (starting := unready(job))[:MAX_NAMED]
    if then := remedy(job) or ("--elastic-timeout S waits longer" if starting else ""):
        why.append(then)
    return JobFailed(f"{there} after {options.elastic_timeout_s:g} s, --elastic-timeout: {'; '.join(why)}")


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
