"""Jobs with a script that has no elastic loop, and jobs that would lose their training.

A process reports when it begins an elastic loop. Until one has, the world cannot change: no process would join another
one. Such a script does not report that training is done, so only the ends of its processes say how its world has ended
(:func:`outcome_of_world`, pure). And if all processes that trained are lost, and no commit is known, another world
would start from the beginning: the job ends instead, and says what would have kept it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.launcher.custody import custody
from hvd_elastic_ext.launcher.driver.actions import NOTHING, HeldBack
from hvd_elastic_ext.launcher.membership.prologue import in_prologue

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
    from hvd_elastic_ext.launcher.membership.world_change import WorldDecision

log = logging.getLogger(__name__)


class Ended(NamedTuple):
    """How a process has ended."""

    who: str
    """Its rank and seat."""
    how: str
    well: bool
    """With exit code 0, and without an order to end."""
    own: bool = False
    """It has reported an error of its script. Errors that only report a lost peer do not count."""
    victim: bool = False
    """It ended because a peer was lost."""
    error: str = ""
    """The digest of its own error."""


class WorldPhase(Enum):
    """How far a world without an elastic loop has come to its end, as far as known."""

    RUNNING = "running"
    """Some processes live, and none has ended well. Next: any other."""
    ENDING = "ending"
    """Some processes have ended well, and the others are about to end. Next: DONE or FAILED."""
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"
    """No process lives, and none has ended well."""


class WorldOutcome(NamedTuple):
    """The phase of a world and why; ``reason`` is empty for ``RUNNING`` and ``LOST``."""

    phase: WorldPhase
    reason: str = ""


def outcome_of_world(size: int, alive: int, ended: Sequence[Ended]) -> WorldOutcome:
    """Return the phase of a world of ``size`` processes. One that neither lives nor ended was lost with its host."""
    well = sum(each.well for each in ended)
    if alive:
        return (
            WorldOutcome(WorldPhase.ENDING, "some have ended well; the others are about to")
            if well
            else WorldOutcome(WorldPhase.RUNNING)
        )
    if not well:
        return WorldOutcome(WorldPhase.LOST)
    if well == size:
        return WorldOutcome(WorldPhase.DONE, "all have ended well")
    return WorldOutcome(WorldPhase.FAILED, _failure(size, well, ended))


def why_unjoined_failed(ended: Iterable[Ended], *, wanted: int) -> str | None:
    """Why programs that do not need a world have failed, after the end of the last one; None if they have not.

    ``ended``: the last end in each seat. ``wanted``: the number of programs that have to end well. Another one may have
    replaced a failed one.
    """
    last = list(ended)
    well = sum(each.well for each in last)
    return None if well >= wanted or well == len(last) else _failure(len(last), well, last)


def first_cause(ended: Iterable[Ended]) -> Ended | None:
    """The process that caused a failure: the first with an error of its own, else the first that is not a victim, else
    the first that failed.

    ``ended``: in the order in which the ends became known. Peers of a failed process end because of it, and may end
    first: the failed one still has to shut down its interpreter.
    """
    bad = [each for each in ended if not each.well]
    found = [each for each in bad if each.own and not each.victim] or [each for each in bad if not each.victim] or bad
    return found[0] if found else None


def _failure(size: int, well: int, ended: Sequence[Ended]) -> str:
    first, bad = first_cause(ended), sum(not each.well for each in ended)
    what = "the host of a process was lost" if first is None else f"{first.who} {first.how}"
    more = f", and {bad - 1} more" if bad > 1 else ""
    return f"{what}{more}; {well} of {size} processes ended well"


def restart_reason(step: int, last: str, *, loops: bool) -> str:
    """Why the next world would start from the beginning, and what would have prevented that.

    All processes that have trained are lost, and no commit is known. ``step``: the newest reported one. ``last``: the
    process that caused it, and how it ended. ``loops``: the script has an elastic loop.
    """
    kept = f"{step} steps were" if step else "what was trained was"
    remedy = (
        "a State of hvd_elastic_ext, or --adopt, keeps commits when processes die, and --checkpoint-dir with it "
        "when hosts do"
        if loops
        else "the script has no elastic loop, and only elastic.run with a State of hvd_elastic_ext keeps commits"
    )
    return f"no process is left that has trained ({last}), and {kept} kept nowhere: {remedy}"


@dataclass(slots=True)
class Loopless:
    """Reports of processes: an elastic loop, steps and commits."""

    of: int
    """The generation of ``ended``."""
    loops: bool = False
    """A process has begun an elastic loop."""
    later: bool = False
    """A process has joined its world in ``hvd.init()``, with a training loop to come."""
    early_step: int = 0
    """The newest step of such a process before its loop."""
    trained: bool = False
    """A process that does not keep commits has trained."""
    kept: bool = False
    """A commit or a checkpoint exists, or was made by a process."""
    step: int = 0
    """The newest step of those that do not keep commits."""
    training_restarts: int = 0
    """How often training has started from the beginning."""
    last: str = ""
    """Which process ended last, and how."""
    ended: dict[ProcessId, Ended] = field(default_factory=dict)
    """Ends of processes of the newest world."""
    never_joined: dict[Seat, Ended] = field(default_factory=dict)
    """By seat, the last end of a process that never asked for a world."""
    logged: set[str] = field(default_factory=set)
    """Causes of changes that were not made, if that was logged."""
    unknown: int = -1
    """The world whose processes were all lost without a report of what they had done."""
    fenced: int = -1
    """The newest world whose members were told that a lost peer is gone (the order "fence")."""
    held: WorldDecision | None = None
    """The change of the world that was not made at the newest look, because no process would join."""

    def note(self, worker: Worker) -> None:
        """Note what a process has reported."""
        self.loops = self.loops or worker.loops
        self.kept = self.kept or worker.every is not None
        self.later = self.later or worker.at_init
        if worker.in_prologue:
            self.early_step = max(self.early_step, worker.step)
        if worker.keeps_nothing:
            self.trained = True
            self.step = max(self.step, worker.step)

    @property
    def has_trained(self) -> bool:
        """Whether a process of the job has trained."""
        return self.trained or self.kept or self.loops

    @property
    def done_unjoined(self) -> Set[Seat]:
        """Seats with a process that has ended well without ever asking for a world."""
        return {seat for seat, end in self.never_joined.items() if end.well}

    def ends_of(self, generation: int) -> list[Ended]:
        """Ends of processes of this world, which is the newest one."""
        return list(self.ended.values()) if self.of == generation else []


# --- what follows from the state


NO_OUTCOME: Final = WorldOutcome(WorldPhase.LOST)
"""The world changes as in any job."""


def world_outcome(job: JobState) -> WorldOutcome:
    """The outcome of the newest world; :data:`NO_OUTCOME` if another world may follow it."""
    meeting, members = job.rendezvous, job.world.members
    if job.loopless.loops or not members or not job.formed:
        return NO_OUTCOME
    present = job.roster.present(members)
    on_their_way = any(worker.generation < job.generation for worker in present)
    if on_their_way or not meeting.waiting.isdisjoint(members):
        return NO_OUTCOME
    return outcome_of_world(len(members), len(present), job.loopless.ends_of(job.generation))


def can_end_by_itself(job: JobState) -> bool:
    """Whether processes of a script without a loop can still finish it, however long that takes."""
    return job.in_place and world_outcome(job).phase in (WorldPhase.ENDING, WorldPhase.RUNNING)


# --- planner


def plan(job: JobState) -> Plan:
    """End the job if no part of it is left to train.

    Scripts without an elastic loop cannot say that they are done: they are when all processes have ended well.
    """
    job.fail(_check_lost_training(job))
    found, why = world_outcome(job)
    if found is WorldPhase.FAILED:
        job.fail(JobFailed(why))
    elif found is WorldPhase.DONE:
        job.outcome.finishing = True
    return NOTHING


def _check_lost_training(job: JobState) -> JobFailed | None:
    """Note what living processes have reported; why the job is over, if all of its training is lost."""
    state = job.loopless
    state.kept = custody.keeps_something(job)
    if state.kept and state.loops:
        return None  # the usual case: there may be thousands of processes
    survivors = 0
    for worker in job.roster.workers.values():
        state.note(worker)
        survivors += worker.has_state
    if state.kept or survivors or not (job.in_place and job.world.begun):
        return None
    if not state.trained:
        _warn_of_unreported_training(job)
        return None
    if world_outcome(job).phase is not WorldPhase.LOST:
        return None
    why = restart_reason(state.step, _why_lost(job), loops=state.loops)
    if not job.options.restart_from_scratch:
        return JobFailed(f"{why}; --restart-from-scratch would start the script again")
    state.training_restarts += 1
    job.record("training_restarted", number=state.training_restarts, steps_lost=state.step or None, reason=why)
    state.trained, state.step = False, 0
    return None


def _warn_of_unreported_training(job: JobState) -> None:
    """Warn if a world is lost that reported no step: it may have trained nevertheless."""
    state = job.loopless
    members, generation = job.world.members, job.generation
    lost = members and job.formed and not job.roster.present(members)
    if lost and not state.loops and state.unknown != generation and world_outcome(job).phase is WorldPhase.LOST:
        state.unknown = generation
        if state.later:
            _report_lost_prologue(job)
            return
        log.warning(
            "no process of the world is left (%s), and none has reported a step or a commit: the script is "
            "started again from its beginning, and what it had trained, if anything, is lost",
            _why_lost(job),
        )


def _report_lost_prologue(job: JobState) -> None:
    """All processes of a world were lost before its training loop: nothing that they trained there is lost."""
    state = job.loopless
    lost = "no process of the world is left"
    if not state.early_step:
        log.info("%s (%s); none had begun its training loop: the script is started again", lost, _why_lost(job))
        return
    log.warning(
        "%s (%s), and none had begun its training loop: the script is started again from its beginning, and %d steps "
        "that it did before the loop, or without one, are lost",
        *(lost, _why_lost(job), state.early_step),
    )


def _why_lost(job: JobState) -> str:
    """Which process of the newest world caused its loss, and how it ended; else the one that ended last."""
    first = first_cause(job.loopless.ends_of(job.generation))
    return job.loopless.last if first is None else f"{first.who} {first.how}"


def why_not(job: JobState) -> HeldBack | None:
    """Why the next world does not form: no process would join it."""
    found, state = world_outcome(job).phase, job.loopless
    held = found is WorldPhase.ENDING or (found is WorldPhase.RUNNING and job.in_place)
    state.held = job.decision if held and job.decision.members is not None else None
    return None if state.held is None else HeldBack("no process has begun an elastic loop")


def report_unchanged_world(job: JobState) -> Plan:
    """Log that the world stays as it is, and tell members that wait for a lost process that it is gone."""
    state, decision = job.loopless, job.loopless.held
    if decision is None:
        return NOTHING
    _fence_waiting_members(job)
    if world_outcome(job).phase is WorldPhase.RUNNING and decision.cause not in state.logged:
        if in_prologue(job) and not any(worker.step for worker in job.roster.present(job.world.members)):
            _report_prologue(job, decision)
            return NOTHING
        state.logged.add(decision.cause)
        why = (
            f"{decision.cause}: {decision.reason}; the world stays as it is: no process has begun an elastic loop "
            "(elastic.run or hvd.elastic.run), and without one hosts can neither be added nor replaced"
        )
        job.record("not_resized", cause=decision.cause, reason=why)
    return NOTHING


def _report_prologue(job: JobState, decision: WorldDecision) -> None:
    """Log once that a change waits for the training loop. If none comes, a warning follows with the first step."""
    said = f"{decision.cause}, before the loop"
    if said not in job.loopless.logged:
        job.loopless.logged.add(said)
        then = "the world changes when its training loop begins, or when its processes have ended"
        log.info("%s: %s; %s", decision.cause, decision.reason, then)


def _fence_waiting_members(job: JobState) -> None:
    """Tell members that wait for a lost host's process that it is gone."""
    state = job.loopless
    members, generation = job.world.members, job.generation
    present = job.roster.present(members)
    silent = len(members) - len(present) - len(state.ends_of(generation))
    if silent > 0 and state.fenced != generation:
        state.fenced = generation
        for worker in present:
            job.tell(worker, "fence")
