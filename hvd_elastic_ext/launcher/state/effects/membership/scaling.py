"""Answers to requests for hosts, and requests of users."""

from __future__ import annotations

from typing import Final

from hvd_elastic_ext.autoscale.decide import Memory
from hvd_elastic_ext.launcher.driver import events
from hvd_elastic_ext.launcher.driver.job import JobState

RETRY_S: Final = 30.0
"""Pause after a request that failed."""
SETTLED_S: Final = 30.0
"""A number that is read within this time after a request may be older than the request."""


def apply(job: JobState, event: events.Scaled | events.HostsAskedFor | events.ScaleByHand | events.Observed) -> None:
    """Apply one event."""
    match event:
        case events.Scaled(hosts, why):
            _answered(job, hosts, why)
        case events.HostsAskedFor(hosts):
            _asked_for(job, hosts)
        case events.ScaleByHand(hosts):
            job.scaling.by_hand = hosts
            job.scaling.look_at = job.now
            job.save()
        case events.Observed(signals):
            job.scaling.signals = dict(signals)  # a signal that cannot be read any more has no value


def _answered(job: JobState, hosts: int, why: str | None) -> None:
    state = job.scaling
    if why is None:
        return
    job.record("not_scaled", hosts=hosts, reason=why)
    state.unasked, state.ask_at = True, job.now + RETRY_S


def _asked_for(job: JobState, hosts: int) -> None:
    """Others have changed the number: follow it, and keep what was learned."""
    state = job.scaling
    if state.unasked or hosts == state.wanted or job.now < state.asked_at + SETTLED_S:
        return
    if state.wanted is not None:
        job.record("scaled", hosts=hosts, before=state.wanted, leaving=[], reason="changed by others")
    state.wanted = hosts
    state.memory = Memory(changes=state.memory.changes)
