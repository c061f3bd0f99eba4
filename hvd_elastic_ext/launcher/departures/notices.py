"""Hosts that will go: by the published list, or by what their agents hear of a cloud.

Leaving is not failing. A host with notice gets no new process, and leaves the world as soon as the others are enough.
If others continue, the call to the next world tells a process that it leaves. In a job without a next world, processes
learn by ``check_alive()`` that they will be preempted, and may save their state: all train until the hosts are gone,
since others may come. What is saved before that is in ``checkpoints/save_then_stop.py``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.json_text import finite_number
from hvd_elastic_ext.launcher.driver import orders
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
    for word, take in (("going", _going), ("notice", _give_notice)):
        report = hello.get(word)
        if agent is not None and isinstance(report, dict):
            take(job, agent, report)


def handle(job: JobState, agent: Agent, news: Mapping[str, Any]) -> bool:
    """Take in news of an agent; False if they are of something else."""
    handler = _OF_AGENTS.get(str(news.get("event")))
    if handler is not None:
        handler(job, agent, news)
    return handler is not None


def _give_notice(job: JobState, agent: Agent, notice: Mapping[str, Any]) -> None:
    if agent.finishing and agent.leaves_by is not None:
        return  # news may come twice
    host, grace_s = agent.host, _seconds(notice.get("grace_s"))
    reason = f"its agent was sent {notice.get('reason')}"
    agent.finishing, agent.leaves_by = True, job.now + grace_s
    job.record("notice", host=host.name, reason=reason, deadline=agent.leaves_by)
    log.warning("%s: %s, and ends within %g s; it is given no work meanwhile", host.name, reason, grace_s)
    for slot in range(host.slots):  # the next agent may be sent away, too
        orders.delay_restart(job, Seat(host.name, slot))


def _going(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    host, in_s = agent.host.name, news.get("in_s")
    if agent.finishing:
        return  # it leaves at once
    reason, known = str(news.get("reason")), agent.notice_reason
    agent.notice_reason, agent.leaves_by = reason, math.inf if in_s is None else job.now + _seconds(in_s)
    if reason != known:  # news may come twice
        deadline = None if in_s is None else agent.leaves_by
        job.record("notice", host=host, reason=reason, deadline=deadline)
        ends = "" if in_s is None else f", within {_seconds(in_s):.0f} s"
        log.warning("%s is about to go%s: %s; it is given no work meanwhile", host, ends, reason)


def _staying(job: JobState, agent: Agent, _: Mapping[str, Any]) -> None:
    if agent.notice_reason is not None and not agent.finishing:
        agent.notice_reason = agent.leaves_by = None
        job.record("notice_over", host=agent.host.name, reason="its notice was withdrawn")
        log.info("%s is not about to go any more", agent.host.name)


def _advised(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """It may go, or not soon: this goes to the journal only."""
    job.record("advised", host=agent.host.name, reason=news.get("reason"))


def _notices_unavailable(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
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


def _refused(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """An agent refuses an order. An order to start a process is sent again after a pause."""
    log.warning("the agent on %s refuses an order: %s", agent.host.name, news.get("reason"))
    worker = job.roster.of(agent.host.name, news.get("slot"), None)
    if worker is not None and not worker.started:
        job.roster.remove(worker)
        orders.delay_restart(job, worker.seat)


def _left(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    where, pids = f"{agent.host.name}[{news.get('slot')}]", news.get("pids")
    named = ", ".join(map(str, pids)) if isinstance(pids, list) else pids
    log.warning("%s: processes %s cannot be killed: another user's, or stuck in the kernel", where, named)


def _dropped(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    if isinstance(slot := news.get("slot"), int):
        text = f"{news.get('records')} journal entries and {news.get('messages')} other messages of slot {slot}"
        why = "its process sends more than is passed on"
    else:
        text = f"{news.get('output')} bytes of output and {news.get('news')} other news"
        why = "its buffer was full while no launcher was connected"
    log.warning("%s has dropped %s: %s", agent.host.name, text, why)


def _seconds(value: Any) -> float:
    """A duration from an agent, in seconds, or 0."""
    return max(0.0, finite_number(value) or 0.0)


_OF_AGENTS: Final[Mapping[str, Callable[[JobState, Agent, Mapping[str, Any]], None]]] = {
    "notice": _give_notice,
    "going": _going,
    "staying": _staying,
    "advised": _advised,
    "notices_unavailable": _notices_unavailable,
    "refused": _refused,
    "left": _left,
    "dropped": _dropped,
}


# --- planner


def plan(job: JobState) -> Plan:
    """Tell processes that their host, or the whole job, is about to be preempted, or is not any more."""
    state = job.preemption
    leaves_by = job.leaves_by
    present = job.roster.present(job.world.members) if leaves_by or state.open else []
    state.all_by = None
    if not present:
        return NOTHING
    state.open = bool(leaves_by)
    enough = job.options.limits.size(len(job.wanted), begun=True) > 0
    going = [by for host, by in leaves_by.items() if job.roster.on(host)]
    state.all_by = min(going) if going and not enough else None
    affected = reclaimed(job.world.members, leaves_by, now=job.now, enough=enough)
    for leaving in (True, False):
        to_notify = [
            worker for worker in present if worker.reclaimed is not leaving and (worker.life in affected) is leaving
        ]
        job.tell_all(to_notify, "reclaim", leaving=leaving)
        for worker in to_notify:
            worker.reclaimed = leaving
    times = [by - SAVE_S for by in leaves_by.values()]
    return Plan(min((at for at in times if job.now < at < math.inf), default=None))
