"""Waits for the hosts of an earlier launcher, and continues the world in which they train."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.membership.adoption import call, take_over, taken_over
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0
"""Pause before a failed start is tried again on a host with processes that may train with those that are back."""


def plan(job: JobState) -> Plan:
    """Stop the look while hosts of an earlier launcher are awaited, or while the launcher has lost its own link."""
    job.decisions_held = job.decisions_held or _waits(job)
    if job.decisions_held:
        job.liveness.moved.clear()  # the progress of processes cannot be observed now
        job.custody.may_end_since.clear()  # nor can agents that may end send their commits
        return Plan(stop=True)
    return NOTHING


def _waits(job: JobState) -> bool:
    """Whether hosts are still awaited. When the wait ends, training continues with those that are back."""
    adoption = job.adoption
    if adoption.until is None:
        return False
    # A process that waits for a world should not wait long. Processes that train lose nothing by the wait.
    waited_enough = bool(job.rendezvous.waiting) and job.now - adoption.begun >= job.options.heartbeat_timeout_s
    if adoption.on_their_way(job.now) and not waited_enough and job.now < adoption.until:
        return True
    adoption.until = None
    for name in adoption.missing.keys() & job.roster.agents.keys():
        job.roster.agents[name].since = job.now  # from now on it has as long to connect as any other
    if adoption.missing:
        log.warning("not back: %s", ", ".join(adoption.missing))
    take_over(job)
    log.info("%s", taken_over(job))
    job.save()
    return False


def retry_missing(job: JobState) -> Plan:
    """Keep trying to reach missing hosts while the inherited world stands; after that they are new hosts."""
    adoption, agents, now = job.adoption, job.roster.agents, job.now
    if not adoption.missing or adoption.until is not None:
        return NOTHING
    for name, host in adoption.missing.items():
        agent = agents.get(name)
        if agent is None:
            continue
        handed_over_s = now - adoption.handed_over.get(name, now)
        if job.world.inherited:
            agent.since = now  # no join timeout: the world trains without it
            if now - adoption.failed.get(name, now - handed_over_s) >= RETRY_S:
                call(job, host)
        elif not agent.last_message_at and (name in adoption.failed or handed_over_s >= RETRY_S):
            # One that was found may have ended before it connected.
            adoption.handed_over.pop(name, None)
            del agents[name]
    if not job.world.inherited:
        if job.world.members:  # the others have continued without them
            adoption.missing.clear()
        adoption.failed.clear()
    return NOTHING
