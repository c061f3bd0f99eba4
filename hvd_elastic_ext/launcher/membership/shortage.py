"""Whether too few processes can start for a world, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.driver.words import Wait, first_few
from hvd_elastic_ext.launcher.health import strikes
from hvd_elastic_ext.launcher.health.loopless import can_end_by_itself
from hvd_elastic_ext.launcher.membership import calls, host_list
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState


NOT_READY: Final = "is not at hvd.init() or elastic.run yet"
NOT_CONNECTED: Final = "has not connected yet"


def why_short(job: JobState) -> str | None:
    """Why no world can form: too few usable slots. None if a world stands or can form."""
    if job.standing:
        return None
    limits, begun = job.options.limits, job.world.begun
    usable = free(job)
    if limits.size(usable, begun=begun):
        return None
    need = f"slots needed to go on: {limits.least}" if begun else f"slots needed: {limits.start}"
    return f"{need}, usable: {usable} ({host_names(job)}): {job.decision.reason}"


def why_too_few(job: JobState) -> list[str]:
    """Which options, and which part of the newest list of hosts, explain that no world can form."""
    return [why for why in (_why_so_many(job), *host_list.why_fewer(job)) if why]


def unready(job: JobState) -> list[str]:
    """Processes that were started and are not ready, and for how long."""
    workers = job.roster.workers.values()
    booting = [worker for worker in workers if worker.stage is Stage.BOOTING and not worker.at_init]
    return [f"{worker.seat}, started {job.now - worker.created:.0f} s ago, {NOT_READY}" for worker in booting]


def remedy(job: JobState) -> str:
    """What to do about fewer published slots than a world needs; empty if they are enough."""
    limits, begun = job.options.limits, job.world.begun
    if job.fleet.hosts.slots >= (limits.least if begun else limits.start):
        return ""
    fewer = "--min-np N to go on with N processes" if begun else "-np N to start with N processes"
    return f"add a host, or give {fewer}, or --elastic-timeout S to wait longer"


def _why_so_many(job: JobState) -> str:
    """Why the job needs more processes than it gets now, if an option causes that."""
    options, start, slots = job.options, job.options.limits.start, job.fleet.hosts.slots
    if job.world.begun:
        least = options.limits.least
        return f"--min-np {least} is more than all hosts have (slots: {slots})" if 0 < slots < least else ""
    if job.world.members or options.woken or start == 1:
        return ""
    if options.all_slots_of is not None:
        first = job.fleet.first_limits or options.limits
        least_given = first.least < first.start
        if least_given and start == first.least:
            return ""
        all_slots = f"without -np a job waits for all {start} slots of {options.all_slots_of}"
        remedy = "-np N starts with N processes"
        if least_given:
            return f"{all_slots} that can be reached; {remedy}"
        return f"{all_slots}; {remedy}, --min-np N without hosts that cannot be reached"
    return f"-np {start} is more than all hosts have (slots: {slots})" if 0 < slots < start else ""


def free(job: JobState) -> int:
    """Wanted seats in which a process may start now: no restart delay applies."""
    return sum(job.fleet.restart_delays.over(seat, job.now) for seat in job.wanted)


def host_names(job: JobState) -> str:
    """The published hosts."""
    return ", ".join(job.fleet.hosts.names) or "no host"


# --- planner


MAX_NAMED: Final = 4
"""Most processes that are not ready in the reason."""


def plan(job: JobState) -> Plan:
    """End the job if it has had too few processes for too long, unless it is to sleep."""
    forms = job.decision.members is not None
    if not forms and (can_end_by_itself(job) or job.clean_exits.until is not None):
        return NOTHING
    if forms or job.custody.holds_back:  # that wait has its own limit
        job.short_since = None
    if not forms and not job.saving.will_sleep:
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
    if blocked := strikes.blocked(job):
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


# --- what the job waits for


FAILS: Final = ", then the job fails (--elastic-timeout)"


def fails_at(job: JobState) -> float | None:
    """When a job with too few processes fails (mono); None if it does not, as far as is known."""
    return None if job.short_since is None else job.short_since + job.options.elastic_timeout_s


def waits(job: JobState) -> Wait:
    """While no world stands: no other can form with the processes that there are."""
    return wait_until(job, fails_at(job), FAILS)._replace(ends="add a host, or end the job")


def wait_until(job: JobState, until: float | None, then: str) -> Wait:
    """That wait with another end: what is lacking, and what may change it."""
    what = [job.decision.reason or "no world is formed yet"]
    early = [worker for worker in job.roster.workers.values() if worker.stage is Stage.BOOTING]
    if outside := [worker.seat for worker in early if worker.at_init]:
        what.append(
            f"in hvd.init() until the others have begun their training loop, or have ended: {first_few(outside)}"
        )
    what += calls.lines(job)
    what += why_too_few(job)
    if done := [worker.seat for worker in job.roster.present(job.world.members) if worker.done]:
        what.append(f"the others go on when processes that are done with training have ended: {first_few(done)}")
    if starting := {name: agent for name, agent in job.roster.agents.items() if not agent.last_message_at}:
        left_s = min(agent.since for agent in starting.values()) + job.roster.join_timeout_s - job.now
        what.append(f"the agent {NOT_CONNECTED}: {first_few(starting)} (at most {max(0.0, left_s):.0f} s more)")
    if loads := [host for host in job.restore.hosts if (load := job.loading_of(host)) is not None and load.under_way]:
        what.append(f"the newest checkpoint is looked for, and loaded, by {first_few(loads)}")
    brief, full = (
        "; ".join([*what, f"blocked: {first_few(blocked)}"] if blocked else what)
        for blocked in (strikes.blocked(job, brief=True), strikes.blocked(job))
    )
    return Wait(brief, until, then, in_full=full)
