"""Blocked hosts, the launcher's own link, and after what time a world counts as stalled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Agent
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import BlockStatus, HealthLedger
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

MISSED_S: Final = 30.0
"""When a missing member of the next world is reported, without ``--progress-timeout``."""
STILL_S: Final = 60.0
"""When to report that a world is stalled, without ``--progress-timeout``."""
STEPS: Final = 3.0
"""A stall also lasts at least this multiple of the longest reported step."""
FINISHED_S: Final = 15.0
"""When to report that ranks wait for one that is done with training: nothing else ends that wait."""


def blocked(job: JobState, *, brief: bool = False, for_good: bool = True) -> list[str]:
    """Published hosts, and slots of others, that are blocked: since when, until when, and why.

    ``brief``: for lines of the log, without what was printed when the host was blocked: that time, and messages of
    ssh. ``for_good``: include those that are blocked until a user clears them.
    """
    now, found = job.now, []
    short = {host: usable for host, usable in job.faults.usable(job.fleet.hosts, now) if len(usable) < host.slots}
    for host, about in job.faults.ledger.by_host(short):
        ledger, usable = about or HealthLedger(), short[host]
        records = [ledger.records[subject] for subject in ledger.subjects(host)] if brief else []
        words = [(record.why, str(record.cause)) for record in records if record.cause is Cause.UNREACHABLE]
        slots: Sequence[int | None] = sorted(set(range(host.slots)).difference(usable)) if usable else [None]
        for slot in slots:
            status = ledger.blocked(now, host, slot)
            if for_good or status.until is not None:
                name = host.name if slot is None else str(Seat(host.name, slot))
                found.append(_blocked(name, status, words, now, brief=brief))
    return found


def unreached(job: JobState, host: Host) -> str | None:
    """Why a host could not be reached at the last try; None if its agent has connected, or there was no try."""
    agent, ledger = job.roster.agents.get(host.name), job.faults.ledger
    if agent is not None and agent.last_message_at:
        return None
    records = map(ledger.records.__getitem__, ledger.subjects(host))
    found = (each.why for each in records if each.cause is Cause.UNREACHABLE and each.strikes_left(job.now))
    return next(found, None)


def not_waited_for(job: JobState) -> list[str]:
    """Hosts and slots without which ``--min-np`` lets a job start, and why; none if it starts on all."""
    first = job.fleet.first_limits
    if job.world.begun or first is None or not first.least < first.start or job.options.limits.start == first.start:
        return []
    usable = job.faults.usable(job.fleet.hosts, job.now)
    tried = [f"{host.name} (unreachable, tried again)" for host, slots in usable if slots and unreached(job, host)]
    return [*blocked(job, brief=True), *tried]


def needed_unlisted(job: JobState) -> dict[str, float]:
    """Hosts that train on though they are not listed any more, because the world would be below ``--min-np`` without
    them.

    By host, since when it is not listed (mono). If no host is listed, all are kept for another reason.
    """
    listed = job.fleet.hosts
    if listed.has_all(job.roster.agents.keys()):
        return {}
    gone = {name: agent.unlisted_at for name, agent in job.roster.agents.items() if name not in listed}
    if not gone or not listed.names or not job.formed:
        return {}
    on = Counter(life.seat.host for life in job.world.members)
    stays = on.total() - sum(on[name] for name in gone) >= job.options.limits.least
    return {} if stays else {name: since for name, since in gone.items() if on[name]}


def _blocked(name: str, status: BlockStatus, words: Sequence[tuple[str, str]], now: float, *, brief: bool) -> str:
    until, why = status.until, status.reason
    for text, short in words:
        why = why.replace(text, short)
    ends = "until it is cleared" if until is None else f"for {until - now:.0f} s more"
    since = "" if brief or status.since is None else f"{now - status.since:.0f} s ago, "
    return f"{name} ({since}{ends}: {why.removeprefix(f'host {name}: ')})"


def stall_limit_s(job: JobState) -> float:
    """Seconds for which a world may stall before that is reported, by its steps, without ``--progress-timeout``."""
    steps = [worker.step_s for worker in job.roster.present(job.world.members) if worker.step_s]
    return max(STILL_S, STEPS * max(steps, default=0.0))


def missing_limit_s(job: JobState) -> float:
    """Seconds for which a member that the next world waits for may stand still before that is reported."""
    return MISSED_S if job.options.progress_timeout_s is None else job.options.progress_timeout_s


def finished_limit_s(job: JobState) -> float:
    """Seconds for which ranks may wait for one that is done with training before that is reported."""
    return min(FINISHED_S, job.options.progress_timeout_s or FINISHED_S)


def link_is_back_by(job: JobState) -> float | None:
    """When decisions are made again at the latest (mono); None if the launcher has its link."""
    state, options = job.link_loss, job.options
    if state.since is None or state.back_by is not None:
        return state.back_by
    newest = max((agent.last_message_at for agent in heard_of_world(job)), default=job.now)
    return newest + max(options.heartbeat_timeout_s, options.orphan_grace_s)


def heard_of_world(job: JobState) -> list[Agent]:
    """Agents of the world's hosts that have sent messages."""
    roster = job.roster
    members = roster.present(job.world.members)
    # Newcomers have no state to continue from.
    those = [worker for worker in members if worker.generation] or members
    hosts = [*(worker.seat.host for worker in those), *(life.seat.host for life in job.world.not_at_fault)]
    found = map(roster.agents.get, dict.fromkeys(hosts))
    return [agent for agent in found if agent is not None and agent.last_message_at]
