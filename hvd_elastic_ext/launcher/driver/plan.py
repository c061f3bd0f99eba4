"""What a job does: a look asks the planners in this order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from hvd_elastic_ext.launcher.checkpoints import attempt, commit_interval, restore, save_then_stop
from hvd_elastic_ext.launcher.custody import custody, transfers
from hvd_elastic_ext.launcher.departures import clean_exits, notices, shutdown
from hvd_elastic_ext.launcher.driver.actions import Plan, WorldQuestion
from hvd_elastic_ext.launcher.driver.job import JobState
from hvd_elastic_ext.launcher.health import ends, link_loss, liveness, loopless, pace, silence, strikes
from hvd_elastic_ext.launcher.membership import (
    adoption,
    agents,
    calls,
    chosen_hosts,
    forming,
    host_list,
    processes,
    prologue,
    shortage,
)
from hvd_elastic_ext.launcher.reporting import all_waits
from hvd_elastic_ext.launcher.scaling import scaling

LOOK_S: Final = 1.0
"""Longest time between two looks, except for large jobs in which nothing happens."""
PAUSE_PER_PROCESS_S: Final = 0.004
"""What each process adds to that time, up to :data:`MAX_PAUSE_S`: a look at thousands takes long."""
MAX_PAUSE_S: Final = 20.0


class Planner(NamedTuple):
    """``ending``: also asked while the job ends.

    ``moving``: when to ask it again (mono), by what has come since :attr:`Plan.again_at`. Heartbeats and questions for
    keys move that time and are no reason for a look: there are hundreds a second.
    ``is_due``: whether to ask it now, by the messages since the last look.
    """

    plan: Callable[[JobState], Plan]
    ending: bool = False
    moving: Callable[[JobState], float | None] | None = None
    is_due: Callable[[JobState], bool] | None = None


MAY_A_WORLD_FORM: Final = (
    WorldQuestion("would processes join another world?", loopless.why_not),  # not without an elastic loop
    WorldQuestion("does a member of the first world have the newest checkpoint?", restore.why_not),
    WorldQuestion("would what it trains be kept?", save_then_stop.why_not),  # not after the last checkpoint
    WorldQuestion("does a member have the newest commit?", custody.why_not),
)
"""What may hold back the world that the engine decides on, in this order.

Earlier planners stop the whole look: while the launcher has lost its own link or waits for hosts of an earlier launcher
(``adoption``), and when the job ends (``before_exit``, ``shutdown``). Once the members of a world are called and have
asked for their ranks, the last question is asked again, by what they hold then.
"""

PLANNERS: Final = (
    Planner(all_waits.plan, ending=True),  # logs what the job waits for since the last look
    Planner(pace.plan),  # logs that the world makes no step
    # questions of processes that wait for their world
    Planner(forming.answer_due, ending=True, moving=forming.answers_due_at, is_due=forming.is_answer_due),
    Planner(custody.note, ending=True),  # the newest commit is saved for the next launcher
    Planner(link_loss.plan, ending=True),  # has the launcher lost its own link? adoption.plan stops the look for that
    Planner(silence.plan, ending=True, moving=silence.due_at, is_due=silence.is_due),  # silent hosts and processes
    Planner(save_then_stop.plan_exit, ending=True),  # a job that has to end: is its last checkpoint made?
    Planner(save_then_stop.plan_finished),  # the newest checkpoint is the end of training: nothing is started
    Planner(adoption.plan),  # stops the look without that link, or until hosts of an earlier launcher reconnect
    Planner(save_then_stop.save_before_exit),  # a job that has to end and does not train saves what memory holds
    Planner(adoption.retry_missing),  # hosts of an earlier launcher that are not back yet
    Planner(host_list.plan),  # an empty list of hosts
    Planner(ends.plan),  # ends that were not reported to any launcher
    Planner(ends.plan_victims),  # ends that follow from the loss of a peer count for nothing
    Planner(clean_exits.plan),  # is training done, because all ranks have left?
    Planner(loopless.plan),  # is the job over?
    Planner(liveness.at_the_end, ending=True),  # members that wait for one that is done with training
    Planner(forming.finish, ending=True),  # members that are not done yet finish
    Planner(shutdown.end_processes, ending=True),  # all, or all but those of the world that finishes
    Planner(save_then_stop.save_at_the_end, ending=True),  # the end of training, while agents still hold it
    Planner(shutdown.end_agents, ending=True),  # and no planner after this one is asked
    Planner(scaling.plan),  # how many hosts the job requests
    Planner(strikes.retry),  # a slot that failed while others get ready is tried again at once
    Planner(chosen_hosts.plan),  # which seats are wanted
    Planner(chosen_hosts.check_start),  # programs that do not need a world, and jobs in which no process can start
    Planner(agents.plan),  # agents where processes are wanted
    Planner(restore.plan),  # the newest checkpoint, before the first world
    Planner(processes.plan),  # processes in wanted seats
    Planner(prologue.plan),  # processes that wait in hvd.init(): do they meet the others there?
    Planner(calls.plan),  # processes catch up with the training call that the others are in
    Planner(transfers.plan_time_out),  # a transfer of a commit that takes too long
    Planner(lambda job: forming.choose(job, MAY_A_WORLD_FORM)),  # does another world form?
    Planner(loopless.report_unchanged_world),  # not if no process would join it
    Planner(transfers.plan),  # the newest commit is sent to where the next world needs it
    Planner(save_then_stop.plan_sleep),  # what memory holds is saved if no world can form; then the job sleeps
    Planner(shortage.plan),  # too few processes for too long
    Planner(forming.begin),  # members of the next world are called
    Planner(forming.plan),  # and get their ranks
    Planner(notices.plan),  # processes learn that their host will be preempted
    Planner(save_then_stop.plan_preemption),  # checkpoints before all hosts are taken away
    Planner(attempt.plan),  # the next checkpoint
    Planner(commit_interval.plan),  # how often commit() commits
    Planner(liveness.plan),  # stalled processes and stragglers
    Planner(strikes.plan),  # when the next one is over
)


def look(job: JobState, *, longest_s: float | None = None) -> float | None:
    """Ask the planners in their order; return when to look again at the latest (mono), None if the job is over.

    ``longest_s``: the longest time until the next look, in place of :data:`LOOK_S` and the longer times of large jobs.

    A planner that stops the look is the last one asked. If the job begins to end in this look, whether or not that has
    stopped it, those that are also asked while it ends are asked again at once.
    """
    was_ending, times = job.ending, list[float]()
    for planner in PLANNERS:
        if job.ending and not planner.ending:
            continue
        plan = planner.plan(job)
        if plan.again_at is not None and plan.again_at > job.now:
            # What was due is done now, or cannot be done: an earlier time would cause looks for ever.
            times.append(plan.again_at)
        if plan.stop:
            break
    if job.ending and not was_ending:
        return look(job, longest_s=longest_s)  # once: now it ends from the first planner on
    if job.outcome.over:
        return None
    if longest_s is None:
        steady = job.steady and not job.ending
        longest_s = max(LOOK_S, min(MAX_PAUSE_S, PAUSE_PER_PROCESS_S * len(job.roster.workers)) if steady else 0.0)
    return min([*times, job.now + longest_s])


def due_at(job: JobState) -> float | None:
    """When to look again before the time that :func:`look` returned (mono), by the messages so far.

    It may be in the past. :func:`is_due` also finds what has no such time, for example a silent process.
    """
    times = (planner.moving(job) for planner in PLANNERS if planner.moving is not None)
    return min((at for at in times if at is not None), default=None)


def is_due(job: JobState) -> bool:
    """Whether to look now, before that time. Call it after all messages that have arrived are read."""
    return any(planner.is_due(job) for planner in PLANNERS if planner.is_due is not None)
