"""Silence is a failure: hosts are cut off, and processes killed, that have sent nothing for too long.

The agent of a silent process kills it, which works on a stopped one too. A silent *host* cannot be told anything: it is
cut off: its agent and its processes leave the roster, so the others of its world go on without it. If its agent comes
back, ``membership/agents.py`` ends those processes. What its memory holds is not lost by that: :mod:`custody` waits for
it. If the launcher itself was late, :mod:`launcher_pauses` moves all these times; if *no* host is heard,
:mod:`link_loss` holds all decisions. A process that starts or leaves may be silent for longer: imports and the end of
an interpreter take time.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.driver.roster import STARTS_S
from hvd_elastic_ext.launcher.driver.words import SOON_S, Wait, first_few
from hvd_elastic_ext.launcher.health import strikes
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership.in_place_or_restarted import ChangeAction
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent, Worker

log = logging.getLogger(__name__)


BEAT_S: Final = 2.0
"""Silence counts from the last heartbeat. So long after that, at most, the process may still have received a message:
heartbeats are as far apart."""
INTERPRETER_S: Final = 60.0
"""Longest silence of a process that is starting, has not begun its training loop, is done, or was sent away: imports,
preparations and the end of an interpreter take time, and on a busy machine no thread sends heartbeats meanwhile.
"""


def process_limit_s(job: JobState, worker: Worker) -> float:
    """Seconds of silence after which a process is killed. One that starts or leaves may be silent for longer."""
    limit, rendezvous = job.options.heartbeat_timeout_s, job.rendezvous
    # A process that was silent before its order to leave has not received the order.
    silent_since = job.now - worker.silent_s + BEAT_S
    ordered = worker.leaving is not None and silent_since > worker.leaving_since
    left = ordered and rendezvous.formed and worker.life not in rendezvous.members
    slow = worker.done or left or worker.stage is Stage.BOOTING or worker.in_prologue
    slow = slow or (not job.in_place and (_imports(job, worker) or _ends(job, worker, silent_since)))
    return max(limit, INTERPRETER_S) if slow else limit


def _imports(job: JobState, worker: Worker) -> bool:
    """Whether a process that has its rank may still be loading what it trains with."""
    return not worker.loops and worker.step_s is None and job.now < worker.since + STARTS_S


def _ends(job: JobState, worker: Worker, silent_since: float) -> bool:
    """Whether all leave their world on purpose, and this one has the order."""
    change = job.restarting.change
    drains = change is not None and change.move is ChangeAction.DRAIN and worker.life in job.world.members
    return drains and change is not None and change.began is not None and silent_since > change.began


# --- a host is cut off


GONE_S: Final = 2.0
"""Longest silence, once its connection is lost, of a host that is not listed, or was not for a while: most likely
it is gone. Also the longest delay of its agent's messages.
"""


def end_earlier_lives(job: JobState) -> None:
    """Cut off agents whose container has ended, without a strike for its successor.

    An agent that still sends messages runs in the new container.
    """
    now, limit_s = job.now, job.options.heartbeat_timeout_s
    for name, (host, since) in list(job.fleet.newer_lives.items()):
        agent = job.roster.agents.get(name)
        if agent is not None and agent.joined and agent.last_message_at > since + GONE_S:
            move_to_new_pod(job, agent, host)
        elif agent is not None and agent.joined and now - agent.last_message_at <= limit_s / 2:
            continue
        elif agent is not None:
            cut_off_dead(job, agent, "its container was started again")
        del job.fleet.newer_lives[name]


def move_to_new_pod(job: JobState, agent: Agent, host: Host) -> None:
    """Take ``host``, a new pod or container of the same name, as that of a living agent and its processes."""
    agent.host, agent.inherited_at = host, job.now
    for worker in job.roster.on(host.name):
        worker.host = host


def cut_off_dead(job: JobState, agent: Agent, reason: str) -> None:
    """Cut off an agent that is known to be dead, with its memory. It is not a strike."""
    job.record("fenced", host=agent.host.name, reason=reason)
    job.roster.commits.agent_ended(agent.host.name, reason)
    cut_off(job, agent, reason, strike=False)
    job.fleet.cut_off.pop(agent.host.name, None)


def cut_off(job: JobState, agent: Agent, reason: str, *, strike: bool) -> None:
    """Remove a silent host; its commits may come back with its agent.

    ``strike``: its silence counts against it. Processes of a world are noted in ``fleet.cut_off_live`` as long as the
    others may wait for them, and their host in ``fleet.recovering`` until it is in a world again.
    """
    fleet = job.fleet
    name = agent.host.name
    fleet.lost[name] = agent.host.uid, agent.identity
    # An agent that has sent no message since the host's successor came has died with its pod.
    strike = strike and agent.last_message_at > agent.inherited_at
    del job.roster.agents[name]
    job.roster.commits.agent_lost(name, last_message_at=agent.last_message_at, why=reason)
    for worker in job.roster.on(name):
        job.roster.remove(worker)
        job.rendezvous.ended(worker.life)
        if worker.stage is Stage.LIVE:
            fleet.cut_off_live.add(worker.life)
            fleet.recovering.update([name] if strike else [])
    job.do(actions.StopLaunch(name))
    job.do(actions.HangUp(name, reason))  # a machine that paused has not noticed anything
    if not strike or notices.is_departing(job, agent):
        return
    job.record("fenced", host=name, reason=reason)
    strikes.strike(job, Cause.FENCED, agent.host, detail=reason)


# --- planner


def plan(job: JobState) -> Plan:
    """Cut off hosts and kill processes that were silent for too long. Its next time is :func:`due_at`."""
    if job.decisions_held:
        return NOTHING
    end_earlier_lives(job)
    now = job.now
    for agent in list(job.roster.agents.values()):
        if agent.last_message_at and now - agent.last_message_at > host_limit_s(job, agent):
            reason = f"nothing was heard from it for {now - agent.last_message_at:.1f} s"
            cut_off(job, agent, reason, strike=not job.ending)
            gone = notices.is_departing(job, agent) or agent.last_message_at <= agent.inherited_at
            if not (job.ending or gone) and agent.host.name in job.fleet.hosts:
                job.fleet.cut_off[agent.host.name] = reason
    for worker in _silent(job):
        reason = f"its process was silent for {worker.silent_s:.1f} s"
        job.record("fenced", host=worker.seat.host, slot=worker.seat.slot, reason=reason)
        orders.kill(job, worker, Cause.SILENT)
    _ask_for_unreported_ends(job)
    return NOTHING


def due_at(job: JobState) -> float | None:
    """When the next host will have been silent for too long, unless a message comes (mono)."""
    limit_s, agents = job.options.heartbeat_timeout_s, job.roster.agents.values()
    if job.fleet.newer_lives:
        return min(
            (agent.last_message_at + host_limit_s(job, agent) for agent in agents if agent.last_message_at),
            default=None,
        )
    first = (
        min((agent.last_message_at for agent in agents if agent.last_message_at and agent.joined), default=math.inf)
        + limit_s
    )
    others = [
        agent.last_message_at + host_limit_s(job, agent)
        for agent in agents
        if agent.last_message_at and not agent.joined
    ]
    at = min(first, *others) if others else first
    return None if at == math.inf else at


def is_due(job: JobState) -> bool:
    """Whether a host or a process is silent for too long now."""
    at = due_at(job)
    return (at is not None and at < job.now) or bool(_silent(job))


def is_due_on(job: JobState, host: str) -> bool:
    """Whether a process of this host is silent for too long now, by the last message of its agent."""
    return any(_is_silent(job, worker) for worker in job.roster.on(host))


def host_limit_s(job: JobState, agent: Agent) -> float:
    """How long a host may be silent."""
    fleet = job.fleet
    limit_s = job.options.heartbeat_timeout_s
    if agent.host.name in fleet.newer_lives:
        return limit_s / 2 if agent.joined else 0.0
    listed = agent.host.name in fleet.hosts and agent.unlisted_at < agent.last_message_at
    gone = not agent.joined and bool(fleet.hosts) and not listed
    return min(limit_s, GONE_S) if gone else limit_s


def _ask_for_unreported_ends(job: JobState) -> None:
    """A process that is missing from its agent's heartbeats has ended: have the agent report that again."""
    limit, roster = job.options.heartbeat_timeout_s, job.roster
    lost: dict[str, list[Worker]] = {}
    for host, agent in roster.agents.items():
        latest = agent.heartbeats_at - limit
        if gone := [x for x in roster.on(host) if x.in_heartbeat_at is not None and x.in_heartbeat_at < latest]:
            lost[host] = gone
    for host, workers in lost.items():
        for worker in workers:
            worker.in_heartbeat_at = None
        names = ", ".join(str(worker.seat) for worker in workers)
        log.warning("%s ended without a report; its agent has to reconnect and report again", names)
        job.do(actions.HangUp(host, "its report was lost"))


def _silent(job: JobState) -> list[Worker]:
    return [worker for worker in job.roster.workers.values() if _is_silent(job, worker)]


def _is_silent(job: JobState, worker: Worker) -> bool:
    if worker.silent_s <= job.options.heartbeat_timeout_s or worker.killed is not None:
        return False
    return worker.silent_s > process_limit_s(job, worker)


# --- what the job waits for


SILENT: Final = 0.4
"""The part of ``--heartbeat-timeout`` after which a silence is logged, if that is longer than :data:`SOON_S`. In large
jobs heartbeats are seconds apart.
"""


def waits(job: JobState) -> Wait | None:
    """Silent hosts, and silent processes of other hosts: after ``--heartbeat-timeout`` they have failed."""
    limit = job.options.heartbeat_timeout_s
    after = max(SOON_S, SILENT * limit)
    hosts, workers = job.roster.agents.items(), job.roster.present(job.world.members)
    silent = {
        name: job.now - agent.last_message_at
        for name, agent in hosts
        if agent.last_message_at and job.now - agent.last_message_at > after
    }
    left = {name: host_limit_s(job, job.roster.agents[name]) for name in silent}
    for worker in [each for each in workers if each.silent_s > SOON_S]:
        most = process_limit_s(job, worker)
        if worker.silent_s > SILENT * most and worker.killed is None and worker.seat.host not in silent:
            silent[str(worker.seat)], left[str(worker.seat)] = worker.silent_s, most
    if not silent:
        return None
    first_s = min(most - silent[name] for name, most in left.items())
    then = ", then it counts as failed (--heartbeat-timeout)"
    return Wait(f"no heartbeat from {first_few(silent)}", job.now + first_s, then, job.now - max(silent.values()))
