"""Processes that have ended as if a peer was lost, until the end of that peer comes."""

from __future__ import annotations

from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health import ends
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.state.effects.health.victims import explained
from hvd_elastic_ext.launcher.state.parts.health import Unexplained
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan


def plan(job: JobState) -> Plan:
    """Forget those whose cause is known. If no other process of a world has failed, blame the first of them: an
    operation can fail without a lost peer, as with different shapes on two ranks.
    """
    waiting, job.faults.unexplained = job.faults.unexplained, []
    if not waiting:
        return NOTHING
    open_lives = {each.worker.life for each in waiting}
    known: dict[int, bool] = {}
    for each in waiting:
        if each.generation not in known:
            known[each.generation] = explained(job, each.members, without=open_lives)
        if known[each.generation]:
            continue
        if _may_come(job, each):
            job.faults.unexplained.append(each)
            continue
        known[each.generation] = True  # the others of its world have ended because of it
        ends.not_a_victim(job, each.worker, Cause.CRASHED, each.how, code=each.code)
    return Plan(min((each.until for each in job.faults.unexplained), default=None))


def _may_come(job: JobState, end: Unexplained) -> bool:
    """Whether the end of another member may still be reported: soon, or once a host that sends nothing is cut off."""
    alive = [life for life in end.members if job.roster.alive(life) is not None]
    if not alive or job.now < end.until:
        return bool(alive)
    agents = filter(None, (job.roster.agents.get(host) for host in {life.seat.host for life in alive}))
    return any(agent.last_message_at < end.until for agent in agents)
