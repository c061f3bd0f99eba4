"""The end of a job: processes and agents are told to end, also on hosts without a connection."""

from __future__ import annotations

import logging
from typing import Final

from hvd_elastic_ext.core.errors import Asleep, Interrupted, JobFailed
from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.state.planner_answer import NOTHING, Plan

log = logging.getLogger(__name__)


PROCESSES_S: Final = 30.0
"""Longest wait for the end of all processes."""


LAST_S: Final = 30.0


LAST_EACH_S: Final = 1.0
"""Longest wait, after that, for the end on hosts without a connection, and what each of them adds to it."""


def end_processes(job: JobState) -> Plan:
    """End all processes if the job was told to end, else all but those of the world that is done with training."""
    if job.ending:
        everything, state = job.outcome.failure is not None, job.shutdown
        waited_for = _end_processes(job, everything=everything)
        if everything or not waited_for:
            state.ends_by = state.ends_by or job.now + PROCESSES_S
    return NOTHING


def end_agents(job: JobState) -> Plan:
    """End all agents once their processes have ended, and nothing is left to save; the job is over then."""
    if not job.ending:
        return NOTHING
    was_over, job.outcome.over = job.outcome.over, _is_over(job)
    if job.outcome.over and not was_over:
        _add_unreachable_hosts(job)
    return Plan(stop=True)


def _is_over(job: JobState) -> bool:
    """End agents; whether all have ended."""
    state = job.shutdown
    if job.final_checkpoint.waits:
        state.ends_by = job.now + PROCESSES_S
        return False
    late = state.is_late(job.now)
    if late or not job.roster.workers:
        _dismiss(job, late=late)
    if state.gone_by is None and (late or _none_left(job)):
        if late:
            log.warning("the launcher does not wait any longer for: %s", ", ".join(job.roster.agents) or "processes")
        _end_unconnected(job)
    return state.gone_by is not None and _all_gone(job, state.gone_by)


def _end_processes(job: JobState, *, everything: bool) -> bool:
    """End processes that are to end; whether some may still train on."""
    state = job.shutdown
    roster, members = job.roster, set(job.world.members)
    for worker in roster.workers.values():
        finishes = worker.done or (worker.life in members and not _waits_to_join(job, worker))
        if everything or not finishes:
            orders.end(job, worker)
    busy = {worker.seat.host: worker.host for worker in roster.workers.values()}
    state.running = busy | {name: host for name, host in state.running.items() if name not in roster.agents}
    return any(worker.killed is None and worker.leaving is None for worker in roster.workers.values())


def _waits_to_join(job: JobState, worker: Worker) -> bool:
    """Whether a member has yet to enter its first world: it would repeat the training that is done."""
    return worker.is_newcomer and (not job.formed or worker.life in job.rendezvous.waiting)


def _dismiss(job: JobState, *, late: bool) -> None:
    for name, agent in list(job.roster.agents.items()):
        if late or name not in job.adoption.missing:
            orders.dismiss(job, agent)


def _none_left(job: JobState) -> bool:
    roster, missing = job.roster, job.adoption.missing
    if roster.workers or not roster.agents.keys() <= missing.keys():
        return False
    return job.shutdown.skip_waiting or not job.adoption.on_their_way(job.now)


def _end_unconnected(job: JobState) -> None:
    """End hosts without a connection by the transport that starts agents."""
    now, state = job.now, job.shutdown
    no_connection = {name: host for name, host in state.running.items() if not _receives_orders(job, name)}
    state.unconnected = {**job.adoption.missing, **no_connection}
    state.asked, state.pending = set(state.unconnected), set(state.unconnected)
    state.gone_by = now + LAST_S + LAST_EACH_S * len(state.unconnected)
    for name, host in list(state.unconnected.items()):
        job.roster.agents.pop(name, None)
        job.do(actions.StopLaunch(name))
        job.do(actions.EndAgent(host))


def _receives_orders(job: JobState, host: str) -> bool:
    """Whether orders arrive. A connection may be lost without notice."""
    agent = job.roster.agents.get(host)
    silent_s = job.options.heartbeat_timeout_s
    return agent is not None and agent.joined and job.now - agent.last_message_at <= silent_s


def _all_gone(job: JobState, gone_by: float) -> bool:
    state = job.shutdown
    if job.now < gone_by and (state.pending or state.asked & job.roster.agents.keys()):
        return False
    if state.unconnected:
        names = ", ".join(state.unconnected)
        log.error(
            "not told to end, may train on: %s; once they are reachable, start and stop this job again",
            names,
        )
    return True


def _add_unreachable_hosts(job: JobState) -> None:
    """Add to the reason of a failed job the hosts on which something of it may still run."""
    state, failure = job.shutdown, job.outcome.failure
    unreachable = {name: why for name, why in job.fleet.unreachable.items() if name not in state.asked}
    unreachable |= {name: state.refused.get(name, "no answer") for name in state.unconnected}
    if failure is None or isinstance(failure, Asleep) or not unreachable:
        return
    names = ", ".join(f"{name} ({why})" for name, why in unreachable.items())
    between = "\n" if "\n" in str(failure) else "; "  # a traceback has lines of its own
    text = f"{failure}{between}not told to end, and may train on: {names}"
    job.outcome.failure = (
        Interrupted(failure.signal_number, text) if isinstance(failure, Interrupted) else JobFailed(text)
    )
