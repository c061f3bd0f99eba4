"""The end of a job: processes and then agents are told to end, also on hosts without a connection.

Agents end last: their memory holds the last commit until it is saved. The launcher leaves when all have answered, or
when the time for that is over, and says which hosts it could not reach.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.errors import Asleep, Interrupted, JobFailed
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.checkpoints import attempt
from hvd_elastic_ext.launcher.checkpoints.save_then_stop import COMMIT_S
from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.words import Wait, first_few
from hvd_elastic_ext.launcher.health.causes import Cause

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.health.stalls import Member
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """How the job ends."""

    over: bool = False
    """It has ended: with ``failure``, or well if that is None."""
    failure: JobFailed | None = None
    """Why everything is to end."""
    finishing: bool = False
    """Training is done: the rest of the world comes to its end."""
    failed: tuple[int, str] = (0, "")
    """The generation of the last process that has failed, and a text about it."""
    early: tuple[Member, ...] = ()
    """Members that were done with training while others went on in a world of their own."""
    went_on: dict[ProcessId, int] = field(default_factory=dict)
    """Those others, and the step after which they did more than the first ones."""
    more: dict[Seat, int] = field(default_factory=dict)
    """How many steps more they did, for those that have ended."""


@dataclass(slots=True)
class Shutdown:
    """The progress of the end."""

    unconnected: dict[str, Host] = field(default_factory=dict)
    """Hosts that could not be told to end: their processes may run for ever."""
    refused: dict[str, str] = field(default_factory=dict)
    """The reasons, of those that have answered."""
    running: dict[str, Host] = field(default_factory=dict)
    """Hosts with processes that were not seen to end."""
    ends_by: float | None = None
    gone_by: float | None = None
    asked: set[str] = field(default_factory=set)
    """Hosts that are ended without a connection."""
    pending: set[str] = field(default_factory=set)
    """Those of them that have not answered."""
    skip_waiting: bool = False
    """The job is ended for the second time: missing hosts are not waited for."""

    def is_late(self, now: float) -> bool:
        """Whether processes and agents had enough time to end."""
        return self.ends_by is not None and now >= self.ends_by


# --- what happens


def end(job: JobState, why: JobFailed) -> None:
    """End everything; the first ``why`` is the outcome. A second call ends it at once.

    A job that is ended from outside makes a last checkpoint first.
    """
    state = job.shutdown
    if not job.ending and _waits_for_checkpoint(job, why):
        return
    if job.outcome.failure is None:
        job.outcome.failure = why
        return
    for worker in job.roster.workers.values():
        orders.kill(job, worker, Cause.TOLD)
    state.skip_waiting = True  # do not wait for missing hosts; after another call, wait for no host
    if state.gone_by is not None:
        state.gone_by = job.now


def answered(job: JobState, host: str, *, well: bool, why: str) -> None:
    """The result of ending a host without a connection."""
    state = job.shutdown
    state.pending.discard(host)
    if well:
        state.unconnected.pop(host, None)
    elif host in state.unconnected:
        state.refused[host] = external_text(why)
        log.warning("%s could not be told to end: %s", host, why)


def agent_joined(job: JobState, host: str) -> None:
    """An agent of such a host has connected."""
    state = job.shutdown
    state.pending.discard(host)
    state.unconnected.pop(host, None)


def _waits_for_checkpoint(job: JobState, why: JobFailed) -> bool:
    """Whether the end has to wait for a checkpoint. A second request does not wait."""
    if job.before_exit.why is not None or not isinstance(why, Interrupted) or not _anything_to_save(job):
        return False
    part = job.before_exit
    part.why, part.since, part.commit_by = why, job.now, job.now + COMMIT_S
    attempt.drop_older_attempt(job)
    return True


def _anything_to_save(job: JobState) -> bool:
    if job.roster.commits.newest is None and not job.settled:
        return False  # the world has not agreed on its first state yet
    at_rest = job.options.durability is not None and not job.standing
    return attempt.request(job) or (at_rest and bool(job.roster.commits.held))  # also of a host that may come back


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
    unreachable = {name: why for name, why in job.fleet.cut_off.items() if name not in state.asked}
    unreachable |= {name: state.refused.get(name, "no answer") for name in state.unconnected}
    if failure is None or isinstance(failure, Asleep) or not unreachable:
        return
    names = ", ".join(f"{name} ({why})" for name, why in unreachable.items())
    between = "\n" if "\n" in str(failure) else "; "  # a traceback has lines of its own
    text = f"{failure}{between}not told to end, and may train on: {names}"
    job.outcome.failure = (
        Interrupted(failure.signal_number, text) if isinstance(failure, Interrupted) else JobFailed(text)
    )


# --- what the job waits for


def waits(job: JobState) -> Wait | None:
    """While the job ends: for hosts with processes or agents that have not ended."""
    state = job.shutdown
    if state.gone_by is not None:
        names = first_few(sorted(state.pending | (state.asked & job.roster.agents.keys())))
        return Wait(f"for the end on {names}, told without a connection", state.gone_by) if names else None
    names = first_few(state.running or job.roster.agents)
    if not names:
        return None
    if state.ends_by is None:  # training is done for some
        return Wait(f"for the end of training on {names}", ends="it ends with the processes there; Ctrl-C ends them")
    return Wait(f"for the end on {names}", state.ends_by)


def waits_for_scripts(job: JobState) -> Wait | None:
    """Training is done on all ranks, and their processes have not ended: a script may have more to do."""
    present = job.roster.present(job.world.members)
    members = present if job.formed else [each for each in present if not each.is_newcomer]
    if job.outcome.failure is not None or not members or not all(worker.done for worker in members):
        return None
    names = first_few([str(worker.seat) for worker in members])
    after = "" if job.final_checkpoint.over else ", and then the last checkpoint is made"
    last_step = max(worker.moved_at for worker in members) or None  # 0 of a process that did none
    after += "" if job.formed else "; no newcomer joins"
    what = f"for the end of {names}: training is done, the script is not{after}"
    return Wait(what, job.shutdown.ends_by, since=last_step, ends="it ends with the script; Ctrl-C ends it")
