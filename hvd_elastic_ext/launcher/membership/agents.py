"""One agent a host: when it is started and ended, and what its list of processes and commits changes when it joins.

An agent that connects again (after a lost link, or to a new launcher) reports all that it has. The difference from what
the launcher believes is applied: an end that was not reported has happened, a start whose message was lost is known of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.custody import custody
from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.health import blame
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership import calls
from hvd_elastic_ext.launcher.membership.next_world import Stage
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, seat_of, slot_number
from hvd_elastic_ext.launcher.membership.reports import take_heartbeat

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent

log = logging.getLogger(__name__)


KILLED: Final = 137
"""Exit code of a process if its real one is lost with its agent."""


def joined(job: JobState, name: str, hello: Mapping[str, Any]) -> list[tuple[Worker, int]]:
    """Bring the roster up to date with an agent that has joined. Processes that have ended, with exit codes."""
    now = job.now
    agent = job.roster.agents.get(name)
    if agent is None:
        agent = job.roster.start_agent(job.fleet.hosts.get(name) or Host(name, 1), now)
    agent.joined, agent.last_message_at, agent.facts = True, now, hello.get("facts") or {}
    agent.launch_ended = None
    job.fleet.unreachable.pop(name, None)
    agent.identity = str(hello.get("agent") or "")
    # It may be a new agent. Orders to end and notices are repeated, so forget them here.
    agent.finishing, agent.dismissed, agent.leaves_by, agent.notice_reason = False, False, None, None
    job.roster.commits.agent_joined(name, agent.identity, hello.get("seats") or {})
    calls.inventory(job, name, hello.get("seats") or {})
    return _apply_report(job, agent, hello.get("seats") or {}, now)


def _apply_report(job: JobState, agent: Agent, seats: Mapping[str, Any], now: float) -> list[tuple[Worker, int]]:
    there: set[ProcessId] = set()
    ended: dict[ProcessId, Mapping[str, Any]] = {}
    for number, status in seats.items():
        seat = seat_of(agent.host.name, number)
        if seat is None or not isinstance(status, dict) or not isinstance(status.get("life"), int):
            continue
        life = ProcessId(seat, status["life"])
        job.roster.note_life(life)
        if status.get("state") == "running" and status.get("code") is None:
            there.add(life)
            if (worker := job.roster.alive(life)) is None:
                worker = _adopted(life, agent.host, status, now)
                job.roster.add(worker)
            else:
                _catch_up(job, worker, status)
            calls.note_call(job, worker, status.get("call"))
            calls.note_record(job, seat, status)
        else:
            ended[life] = status
            worker, code = _adopted(life, agent.host, status, now), status.get("code")
            heard = job.roster.alive(life) is not None or job.roster.ended.get(life.seat, 0) >= life.number
            if heard or not isinstance(code, int):
                continue
            job.adoption.ends[life] = worker.generation, code
            if _reports_its_end(worker, code):
                job.fleet.unreported_ends[life] = worker, code
    return _compare(job, agent, there, ended)


def _compare(
    job: JobState, agent: Agent, there: set[ProcessId], ended: Mapping[ProcessId, Mapping[str, Any]]
) -> list[tuple[Worker, int]]:
    """Repair what was lost with the last connection: orders, and ends of processes."""
    gone: list[tuple[Worker, int]] = []
    for worker in job.roster.on(agent.host.name):
        status = ended.get(worker.life)
        if worker.life in there:
            orders.repeat_order(job, worker)
        elif worker.started or status is not None:
            code = (status or {}).get("code")
            worker.done = worker.done or bool((status or {}).get("done"))
            worker.warned = worker.warned or bool((status or {}).get("warned"))
            worker.terminated = worker.terminated or bool((status or {}).get("terminated"))
            gone.append((worker, code if isinstance(code, int) else KILLED))
        else:  # the order to start it was lost
            job.roster.remove(worker)
    return gone


def _catch_up(job: JobState, worker: Worker, status: Mapping[str, Any]) -> None:
    """Apply messages of a process that were lost with the connection."""
    now, generation = job.now, status.get("generation")
    started(job, worker, status.get("pid"))  # without a pid: its agent reports it later
    worker.loops = worker.loops or status.get("loops") is True
    worker.done = worker.done or bool(status.get("done"))
    worker.warned = worker.reclaimed = bool(status.get("warned"))
    if worker.stage is Stage.BOOTING:
        worker.at_init, worker.alone = status.get("at_init") is True, status.get("alone") is True
        if status.get("parked") and not worker.at_init:
            worker.stage, worker.since = Stage.PARKED, now
    worker.terminated = worker.terminated or bool(status.get("terminated"))
    if isinstance(generation, int) and worker.generation < generation <= job.generation:
        worker.generation, worker.since = generation, now
    if isinstance(agreed := status.get("agreed"), int):
        worker.agreed = max(worker.agreed, min(agreed, worker.generation))


def started(job: JobState, worker: Worker, pid: Any, *, warm: bool = False) -> None:
    """A process runs. The agent may report this more than once. ``warm``: its imports were done before."""
    if worker.started or type(pid) is not int:
        return
    worker.started, worker.pid = True, pid
    place = {"rank": worker.planned, "local_rank": worker.local_rank}
    warmly = {"warm": True} if warm else {}
    job.record("spawned", host=worker.seat.host, slot=worker.seat.slot, pid=worker.pid, **place, **warmly)


def _adopted(life: ProcessId, host: Host, status: Mapping[str, Any], now: float) -> Worker:
    """A process that an earlier launcher started."""
    generation = status.get("generation")
    live = isinstance(generation, int) and generation > 0
    at_init = status.get("at_init") is True
    stage = Stage.LIVE if live else Stage.PARKED if status.get("parked") and not at_init else Stage.BOOTING
    loops = status.get("loops") is not False  # if unknown, as in most scripts
    worker = Worker(life, host, stage, now, started=True, pid=status.get("pid"), loops=loops)
    worker.at_init, worker.alone = at_init, status.get("alone") is True
    worker.done = bool(status.get("done"))
    worker.warned = worker.reclaimed = bool(status.get("warned"))
    worker.terminated = bool(status.get("terminated"))
    noted = slot_number(str(status.get("note")))
    worker.local_rank = life.seat.slot if noted is None else noted
    if isinstance(status.get("beat"), dict):
        take_heartbeat(worker, status["beat"], now)
    if live:
        worker.live_at = now
        worker.generation = int(str(generation))
        worker.agreed = 0 if worker.in_prologue else worker.generation
    return worker


def _reports_its_end(worker: Worker, code: int) -> bool:
    """Whether the end of a process matters for training: it was done or has ended it, kept no commit, or has no elastic
    loop.
    """
    return worker.stage is Stage.LIVE and (worker.done or code == 0 or not worker.loops or worker.keeps_nothing)


def refused(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """An agent refuses an order. An order to start a process is sent again after a pause."""
    log.warning("the agent on %s refuses an order: %s", agent.host.name, news.get("reason"))
    worker = job.roster.of(agent.host.name, news.get("slot"), None)
    if worker is not None and not worker.started:
        job.roster.remove(worker)
        orders.delay_restart(job, worker.seat)


def left(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """Processes on a host have outlived a SIGKILL."""
    where, pids = f"{agent.host.name}[{news.get('slot')}]", news.get("pids")
    named = ", ".join(map(str, pids)) if isinstance(pids, list) else pids
    log.warning("%s: processes %s cannot be killed: another user's, or stuck in the kernel", where, named)


def dropped(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """An agent could not pass everything on."""
    if isinstance(slot := news.get("slot"), int):
        text = f"{news.get('records')} journal entries and {news.get('messages')} other messages of slot {slot}"
        why = "its process sends more than is passed on"
    else:
        text = f"{news.get('output')} bytes of output and {news.get('news')} other news"
        why = "its buffer was full while no launcher was connected"
    log.warning("%s has dropped %s: %s", agent.host.name, text, why)


# --- planner


def plan(job: JobState) -> Plan:
    """Start missing agents, dismiss those that are not needed, and give up starts that take too long.

    Not in a job that has to end: its agents hold the state that is saved.
    """
    if job.before_exit.why is not None:
        return NOTHING
    now, agents, listed = job.now, job.roster.agents, job.fleet.hosts
    needed = dict.fromkeys([seat.host for seat in job.wanted])
    missing = [name for name in needed if name not in agents]
    for name in missing:
        if (host := listed.get(name)) is not None:
            job.roster.start_agent(host, now)
            job.do(actions.StartAgent(host))
    timeout = job.roster.join_timeout_s
    for name, agent in list(agents.items()):
        # A finishing agent ends in any case; if its host is wanted again, a new agent follows.
        leaves = agent.finishing or (name not in needed and name not in listed)
        if leaves and not agent.dismissed and not job.roster.on(name) and _may_end(job, name):
            orders.dismiss(job, agent)  # the agent of a blocked host stays: its commit may be needed
        if not agent.last_message_at and now - agent.since > timeout and name in agents:
            del agents[name]
            job.do(actions.StopLaunch(name))
            detail = f"no agent came within {timeout:g} s"
            blame.strike(job, Cause.UNREACHABLE, agent.host, detail=detail, tried_s=now - agent.since)
    return NOTHING


def _may_end(job: JobState, host: str) -> bool:
    """Whether the commit of a host's agent is not needed: others hold it, and a job that may sleep has saved it."""
    sleeps = job.options.below_min == "sleep"
    if sleeps and not job.standing and host in job.roster.commits.newest_hosts():
        return False
    job.custody.asks_to_end(host, job.now)
    return not custody.is_needed_of(job, host)
