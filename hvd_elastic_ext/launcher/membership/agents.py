"""One agent a host: when it is started and ended, and what follows when it connects, is lost or reports something.

An agent that connects again (after a lost link, or to a new launcher) reports all that it has. The difference from what
the launcher believes is applied: an end that was not reported has happened, a start whose message was lost is known of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.checkpoints import attempt, restore, save_then_stop
from hvd_elastic_ext.launcher.custody import custody, transfers
from hvd_elastic_ext.launcher.departures import notices, shutdown
from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.driver.roster import USAGE, LaunchEnd, Worker
from hvd_elastic_ext.launcher.health import ends, silence, strikes
from hvd_elastic_ext.launcher.health.causes import SSH_FAILED, Cause
from hvd_elastic_ext.launcher.membership import adoption, calls, processes
from hvd_elastic_ext.launcher.membership.devices import noted
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, seat_of
from hvd_elastic_ext.launcher.membership.reports import signals, take_heartbeat
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent

log = logging.getLogger(__name__)


KILLED: Final = 137
"""Exit code of a process if its real one is lost with its agent."""
LOST_AFTER_S: Final = 2.0
"""An agent that loses its connection so soon after the end of its launch has ended with it."""


# --- it connects


def joined(job: JobState, host: str, hello: Mapping[str, Any]) -> None:
    """An agent has connected, perhaps again."""
    ended = _take_in(job, host, hello)
    notices.joined(job, host, hello)
    for worker, code in ended:
        ends.exited(job, worker, {"code": code})  # their ends were not reported
    for part in (attempt, transfers, adoption, shutdown):
        part.agent_joined(job, host)


def _take_in(job: JobState, name: str, hello: Mapping[str, Any]) -> list[tuple[Worker, int]]:
    """Bring the roster up to date with an agent that has joined. Processes that have ended, with exit codes."""
    now = job.now
    agent = job.roster.agents.get(name)
    if agent is None:
        agent = job.roster.start_agent(job.fleet.hosts.get(name) or Host(name, 1), now)
    agent.joined, agent.last_message_at, agent.facts = True, now, hello.get("facts") or {}
    agent.launch_ended = None
    job.fleet.cut_off.pop(name, None)
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
    processes.started(job, worker, {"pid": status.get("pid")})  # without a pid: its agent reports it later
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
        if worker.stage is not Stage.LIVE:
            worker.went_live(now)
    if isinstance(agreed := status.get("agreed"), int):
        worker.agreed = max(worker.agreed, min(agreed, worker.generation))


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
    if (started_with := noted(str(status.get("note")))) is not None:
        worker.local_rank, worker.stands_for = started_with
    else:
        worker.local_rank = life.seat.slot
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


# --- it ends, or its connection is lost


def unfit(job: JobState, host: str, why: str) -> None:
    """A host's agent has connected, and cannot be worked with."""
    agent = job.roster.agents.get(host)
    if agent is None:
        return
    log.warning("%s cannot be used: %s", host, why)
    strikes.strike(job, Cause.NEVER_READY, agent.host, detail=why, tried_s=job.now - agent.since)
    orders.dismiss(job, agent)  # after the cooldown the next agent is checked again


def lost(job: JobState, host: str, reason: str) -> None:
    """The connection to an agent is lost."""
    agent = job.roster.agents.get(host)
    if agent is not None:
        agent.joined = False
    for part in (restore, attempt, save_then_stop, transfers, calls):
        part.agent_lost(job, host)  # also of a fenced host
    if agent is None:
        return
    log.debug("connection to %s lost: %s", host, reason)
    job.roster.commits.agent_lost(host, last_message_at=agent.last_message_at, why=reason)
    if agent.finishing and not job.roster.on(host):
        job.roster.commits.agent_ended(host, "its agent has ended")
        del job.roster.agents[host]
    elif agent.launch_ended is not None and job.now - agent.launch_ended.at <= LOST_AFTER_S:
        _ended(job, agent, agent.launch_ended)


def launch_ended(job: JobState, host: str, code: int, remark: str) -> None:
    """A launch has ended: its agent could not be started, or has ended, or its ssh has lost the connection."""
    agent, detail = job.roster.agents.get(host), remark or f"exit code {code}"
    if agent is None:
        return
    if code == 0:  # it found a living agent
        adoption.handed_over(job, host)
    elif agent.last_message_at:
        end = LaunchEnd(job.now, code, detail)
        if code == SSH_FAILED:
            return  # a connection of ssh that broke says nothing about the agent
        if agent.joined:
            agent.launch_ended = end  # the loss of its connection may be read a moment later
        else:
            _ended(job, agent, end)
    elif not adoption.failed(job, host, detail):
        del job.roster.agents[host]
        job.faults.first = job.faults.first or f"no agent could be started on {host}: {detail}"
        before = job.faults.ledger
        if not job.decisions_held:
            strikes.strike(job, Cause.UNREACHABLE, agent.host, detail=detail, tried_s=job.now - agent.since)
        if job.faults.ledger is before:  # otherwise the line of the strike reports it
            log.warning("no agent could be started on %s: %s", host, detail)


def _ended(job: JobState, agent: Agent, end: LaunchEnd) -> None:
    host, why = agent.host.name, f"its agent ended with exit code {end.code}"
    if not end.detail.startswith("exit code"):
        why += f": {external_text(end.detail)}"
    job.faults.first = job.faults.first or f"the agent on {host} ended: {end.detail}"
    job.roster.commits.agent_ended(host, why)
    silence.cut_off(job, agent, why, strike=job.outcome.failure is None)


# --- what it reports of itself and its host


def usage(_: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """What its host has in use."""
    agent.usage = signals({name: news.get(name) for name in USAGE})
    agent.gpu_unknown = external_text(str(news.get("gpu_unknown") or ""))


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
    needed = dict.fromkeys([seat.host for seat in (*job.wanted, *job.spares)])
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
            strikes.strike(job, Cause.UNREACHABLE, agent.host, detail=detail, tried_s=now - agent.since)
    return NOTHING


def _may_end(job: JobState, host: str) -> bool:
    """Whether the commit of a host's agent is not needed: others hold it, and a job that may sleep has saved it."""
    sleeps = job.options.below_min == "sleep"
    if sleeps and not job.standing and host in job.roster.commits.newest_hosts():
        return False
    job.custody.asks_to_end(host, job.now)
    return not custody.is_needed_of(job, host)
