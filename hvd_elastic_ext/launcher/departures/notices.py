"""Hosts that will go: by the published list, or by what their agents hear of a cloud.

Leaving is not failing. A host with notice gets no new process, and leaves the world as soon as the others are enough.
If others continue, the call to the next world tells a process that it leaves. In a job without a next world, processes
learn by ``check_alive()`` that they will be preempted, and may save their state: all train until the hosts are gone,
since others may come. What is saved before that is in ``checkpoints/save_then_stop.py``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.health.causes import announced
from hvd_elastic_ext.launcher.membership.rendezvous import Seat

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent
    from hvd_elastic_ext.launcher.health.causes import Cause
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Notices:
    """Hosts that will go, by the published list; what agents report is in the roster."""

    departing: Mapping[str, float] = field(default_factory=dict)
    """When each will be gone (mono; infinite if unknown)."""
    announced: Mapping[str, Cause] = field(default_factory=dict)
    """Why each goes."""
    listed: frozenset[str] = frozenset()
    """Those that the newest list names."""
    unavailable: set[str] = field(default_factory=set)
    """Clouds that a host could not ask, as was reported."""


@dataclass(slots=True)
class Preemption:
    """What processes were told about the loss of hosts."""

    all_by: float | None = None
    """When less than training needs will be left (mono; infinite if unknown); None if enough will be."""
    open: bool = True
    """A process may have been told that its host goes, perhaps by an earlier launcher."""


# --- which processes save their state


SAVE_S: Final = 30.0
"""A process is warned this long before its host is gone, even if other hosts may come: some clouds give no more
time.
"""


def reclaimed(
    members: Collection[ProcessId], leaves_by: Mapping[str, float], *, now: float, enough: bool
) -> frozenset[ProcessId]:
    """The ``members`` that have to save their state. Pure.

    ``leaves_by``: hosts that will go, and when (mono). If present and coming hosts are not ``enough``, all members have
    to: the job is below its minimum.
    """
    leaving = frozenset(life for life in members if life.seat.host in leaves_by)
    if leaving and not enough:
        return frozenset(members)
    return frozenset(life for life in leaving if now >= leaves_by[life.seat.host] - SAVE_S)


# --- what follows from the state


def by_agents(job: JobState) -> dict[str, float]:
    """Hosts with an agent that has given notice, and when that, or the host, will be gone (mono)."""
    return {name: agent.leaves_by for name, agent in job.roster.agents.items() if agent.leaves_by is not None}


def leaves_by(job: JobState) -> Mapping[str, float]:
    """Hosts with notice, by the list or by their agents, and when they will be gone (mono)."""
    known = by_agents(job)
    both = {host: min(by, known.get(host, by)) for host, by in job.notices.departing.items()}
    return {**known, **both}


def next_end_s(job: JobState) -> float | None:
    """Seconds until the first host with processes is gone; None if no such time is known."""
    by = min((by for host, by in leaves_by(job).items() if job.roster.on(host)), default=math.inf)
    return max(0.0, by - job.now) if by < math.inf else None


def departure_cause(job: JobState, host: str) -> Cause | None:
    """Why a host has notice; None if it has none."""
    if host in job.notices.announced or host not in leaves_by(job):
        return job.notices.announced.get(host)
    return announced(job.roster.agents[host].notice_reason or "")


def leaving_or_unlisted(job: JobState) -> Mapping[str, float]:
    """Hosts that leave, and when (mono): those with notice, and those that are not published any more."""
    leaving, agents = dict(leaves_by(job)), job.roster.agents
    for name, agent in agents.items():
        if name not in job.fleet.hosts or agent.finishing:
            leaving.setdefault(name, math.inf)
    return leaving


def is_departing(job: JobState, agent: Agent) -> bool:
    """Whether an agent, or its host, was about to end in any case."""
    return agent.finishing or agent.leaves_by is not None or agent.host.name in leaves_by(job)


# --- what happens


def published(job: JobState, departing: Mapping[str, tuple[str, float | None]]) -> None:
    """Take in the newest list: by host, why it goes, and when (mono) if that is known."""
    state = job.notices
    for name, (reason, deadline) in departing.items():
        if name not in state.listed:
            job.record("notice", host=name, reason=reason, deadline=deadline)
    for name in sorted(
        state.listed.difference(departing).intersection(job.fleet.hosts.names)
    ):  # a fixed order, for replays
        job.record("notice_over", host=name, reason="it is listed as a host again")
    state.listed = frozenset(departing)
    # A notice stays for a host that is not listed any more.
    hosts = job.fleet.hosts
    kept = {n: by for n, by in state.departing.items() if n in job.roster.agents and n not in hosts}
    state.departing = kept | {name: math.inf if by is None else by for name, (_, by) in departing.items()}
    state.announced = {name: announced(reason) for name, (reason, _) in departing.items()}


def joined(job: JobState, host: str, hello: Mapping[str, Any]) -> None:
    """An agent that connects again repeats its notices."""
    agent = job.roster.agents.get(host)
    for word, take in (("going", about_to_go), ("notice", sent_away)):
        report = hello.get(word)
        if agent is not None and isinstance(report, dict):
            take(job, agent, report)


def sent_away(job: JobState, agent: Agent, notice: Mapping[str, Any]) -> None:
    """An agent was told to end by another than the launcher, as when its pod is deleted: its host is about to go."""
    if agent.finishing and agent.leaves_by is not None:
        return  # news may come twice
    host, grace_s = agent.host, _seconds(notice.get("grace_s"))
    reason = f"its agent was sent {notice.get('reason')}"
    agent.finishing, agent.leaves_by = True, job.now + grace_s
    job.record("notice", host=host.name, reason=reason, deadline=agent.leaves_by)
    log.warning("%s: %s, and ends within %g s; it gets no work meanwhile", host.name, reason, grace_s)
    for slot in range(host.slots):  # the next agent may be sent away, too
        job.fleet.restart_delays.begin(Seat(host.name, slot), job.now, job.options.cooldown_s)


def about_to_go(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """A host is about to be taken away, as its cloud or its user says."""
    host, in_s = agent.host.name, news.get("in_s")
    if agent.finishing:
        return  # it leaves at once
    reason, known = str(news.get("reason")), agent.notice_reason
    agent.notice_reason, agent.leaves_by = reason, math.inf if in_s is None else job.now + _seconds(in_s)
    if reason != known:  # news may come twice
        deadline = None if in_s is None else agent.leaves_by
        job.record("notice", host=host, reason=reason, deadline=deadline)
        ends = "" if in_s is None else f", within {_seconds(in_s):.0f} s"
        log.warning("%s is about to go%s: %s; it gets no work meanwhile", host, ends, reason)


def staying(job: JobState, agent: Agent, _: Mapping[str, Any]) -> None:
    """A notice was withdrawn."""
    if agent.notice_reason is not None and not agent.finishing:
        agent.notice_reason = agent.leaves_by = None
        job.record("notice_over", host=agent.host.name, reason="its notice was withdrawn")
        log.info("%s is not about to go any more", agent.host.name)


def advised(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """It may go, or not soon: this goes to the journal only."""
    job.record("advised", host=agent.host.name, reason=news.get("reason"))


def unavailable(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """A source of notices does not answer an agent, or does again."""
    source, problem = str(news.get("source")), news.get("reason")
    job.record("notices_unavailable", host=agent.host.name, source=source, reason=problem)
    if (
        problem is not None and source not in job.notices.unavailable
    ):  # otherwise each of a thousand hosts would be logged
        job.notices.unavailable.add(source)
        text = "its cloud does not tell whether the host is preempted (--notices-from)"
        log.warning(
            "%s: %s: %s; the agent asks again. For other hosts see the journal",
            agent.host.name,
            text,
            problem,
        )


def _seconds(value: Any) -> float:
    """A duration from an agent, in seconds, or 0."""
    return max(0.0, finite_number(value) or 0.0)


# --- planner


def plan(job: JobState) -> Plan:
    """Tell processes that their host, or the whole job, is about to be preempted, or is not any more."""
    state = job.preemption
    going_by = leaves_by(job)
    present = job.roster.present(job.world.members) if going_by or state.open else []
    state.all_by = None
    if not present:
        return NOTHING
    state.open = bool(going_by)
    enough = job.options.limits.size(len(job.wanted), begun=True) > 0
    going = [by for host, by in going_by.items() if job.roster.on(host)]
    state.all_by = min(going) if going and not enough else None
    affected = reclaimed(job.world.members, going_by, now=job.now, enough=enough)
    for leaving in (True, False):
        to_notify = [
            worker for worker in present if worker.reclaimed is not leaving and (worker.life in affected) is leaving
        ]
        job.tell_all(to_notify, "reclaim", leaving=leaving)
        for worker in to_notify:
            worker.reclaimed = leaving
    times = [by - SAVE_S for by in going_by.values()]
    return Plan(min((at for at in times if job.now < at < math.inf), default=None))
