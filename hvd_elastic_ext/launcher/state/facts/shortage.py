"""Whether too few processes can start for a world."""

from __future__ import annotations

from hvd_elastic_ext.launcher.state.job import JobState


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


def free(job: JobState) -> int:
    """Wanted seats in which a process may start now: no restart delay applies."""
    return sum(job.fleet.restart_delays.over(seat, job.now) for seat in job.wanted)


def host_names(job: JobState) -> str:
    """The published hosts."""
    return ", ".join(job.fleet.hosts.names) or "no host"
