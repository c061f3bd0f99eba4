"""Says what a job that does not train waits for, and for how long at most. It decides nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from hvd_elastic_ext.launcher.rules.membership.next_world import Stage
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan

log = logging.getLogger(__name__)

SAY_S: Final = 4.0
"""Pause between two lines of one wait: a silence of more than 5 s is what people take for a hang."""
SILENT: Final = 0.4
"""The part of ``--heartbeat-timeout`` after which a silence is said, if that is longer than :data:`SAY_S`: in large
jobs heartbeats are seconds apart.
"""
NAMES: Final = 4
"""Most names in one line."""


class Wait(NamedTuple):
    """``until``: when it ends at the latest (mono), None if nothing ends it; ``then``: what follows.

    ``since``: when it began (mono), if that was before it was seen.
    """

    what: str
    until: float | None = None
    then: str = ""
    since: float | None = None


def plan(job: JobState) -> Plan:
    """Say what the last look left the job waiting for, at first after :data:`SAY_S`."""
    wait = waits_for(job)
    if wait is None:
        job.say_at = None
        return NOTHING
    lasts = wait.since is not None and job.now - wait.since >= SAY_S
    due = lasts if job.say_at is None else job.now >= job.say_at
    if due:
        log.info("%s", _line(job, wait))
    if due or job.say_at is None:
        job.say_at = job.now + SAY_S
    return Plan(job.say_at)


def _line(job: JobState, wait: Wait) -> str:
    if wait.until is None:
        return f"waiting: {wait.what}"
    return f"waiting: {wait.what}; at most {max(0.0, wait.until - job.now):.0f} s more{wait.then}"


def status(job: JobState) -> str:
    """What the job does at this moment, in one short line for a terminal."""
    wait = waits_for(job)
    if wait is not None:
        return _line(job, wait)
    members = job.roster.present(job.world.members)
    parts = [f"world {job.generation}", f"size {len(members)}"]
    if step := max((worker.step for worker in members), default=0):
        parts.append(f"step {step}")
    times = [worker.step_s for worker in members if worker.step_s]
    if times:
        parts.append(f"{1 / max(times):.3g} steps/s")
    if newcomers := sum(worker.stage is not Stage.LIVE for worker in job.roster.workers.values()):
        parts.append(f"newcomers: {newcomers}")
    if blocked := _left_out(job):
        parts.append(f"left out: {_some(blocked)}")
    return ", ".join(parts)


def waits_for(job: JobState) -> Wait | None:
    """What the job waits for; None if it trains, or nothing has to be waited for."""
    if job.ending:
        names = _names(job.shutdown.running or job.roster.agents)
        return Wait(f"for the end on {names}", job.shutdown.ends_by) if names else None
    if job.adoption.until is not None:
        names = _names(job.adoption.missing)
        return Wait(f"for hosts of the launcher before this one: {names}", job.adoption.until) if names else None
    if job.link_loss.since is not None:
        return Wait("no host is heard: is this machine's own link down?")
    if job.custody.holds_back:
        verdict = job.custody.verdict
        return Wait(f"for the newest commit: {verdict.reason}", verdict.until)
    if not job.standing:
        return _shortage(job)
    if not job.formed:
        absent = [str(life.seat) for life in _unasked(job)]
        return Wait(f"world {job.generation} forms" + (f": not there yet: {_some(absent)}" if absent else ""))
    return _silence(job)


def _silence(job: JobState) -> Wait | None:
    """The silence of hosts, and of processes whose host is heard: after ``--heartbeat-timeout`` it is a failure."""
    limit = job.options.heartbeat_timeout_s
    after = max(SAY_S, SILENT * limit)
    agents, workers = job.roster.agents.items(), job.roster.present(job.world.members)
    silent = {name: job.now - agent.heard for name, agent in agents if agent.heard and job.now - agent.heard > after}
    silent |= {
        str(worker.seat): worker.silent_s
        for worker in workers
        if worker.silent_s > after and worker.killed is None and worker.seat.host not in silent
    }
    if not silent:
        return None
    longest = max(silent.values())
    then = ", then it counts as failed (--heartbeat-timeout)"
    return Wait(f"no heartbeat from {_names(silent)}", job.now + limit - longest, then, job.now - longest)


def _shortage(job: JobState) -> Wait:
    workers = job.roster.workers
    booting = {str(seat): worker for seat, worker in workers.items() if worker.stage is Stage.BOOTING}
    if booting and job.options.limits.size(len(workers), begun=job.world.begun):
        latest = min(worker.since for worker in booting.values()) + job.options.standby_timeout_s
        return Wait(f"processes that have not called hvd.init() yet: {_names(booting)}", latest, " (--standby-timeout)")
    what = [job.decision.reason or "no world is formed yet"]
    if not job.fleet.hosts.names:
        what.append("no host is published")
    if blocked := _left_out(job):
        what.append(f"left out: {_some(blocked)}")
    until = None if job.short_since is None else job.short_since + job.options.elastic_timeout_s
    return Wait("; ".join(what), until, ", then the job fails (--elastic-timeout)")


def _left_out(job: JobState) -> list[str]:
    """Hosts that get no work on any slot, and for how long."""
    found = []
    for host in job.fleet.hosts:
        verdict = job.faults.ledger.blocked(job.now, host)
        if verdict.blocked:
            found.append(host.name if verdict.until is None else f"{host.name} ({verdict.until - job.now:.0f} s more)")
    return found


def _unasked(job: JobState) -> list[Life]:
    return [life for life in job.world.members if life not in job.rendezvous.waiting]


def _names(hosts: Mapping[str, object]) -> str:
    return _some(list(hosts))


def _some(names: list[str]) -> str:
    more = len(names) - NAMES
    return ", ".join(names[:NAMES]) + (f" and {more} more" if more > 0 else "")
