"""What an engine does when the world changes: processes that go on in place, or other processes.

Processes of Horovod and torch enter another world. Those of torchrun and mpirun keep their places, so each has new
processes. Commits lie in the agents' memory, so they outlive the processes that made them: in a change, all members
leave at the same step, or are ended at once if one of them is lost (:func:`decide`, pure). Then the programs that stand
by in all slots start, and all continue from the newest commit that any of them finds. Planners do not name engines:
:func:`engine_of` does.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.messages.slot_protocol import START_AGAIN, TERMINATED
from hvd_elastic_ext.launcher.custody.custody import keeps_something
from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.roster import STARTS_S
from hvd_elastic_ext.launcher.driver.words import Wait, first_few
from hvd_elastic_ext.launcher.health.causes import BUDGET_WINDOW_S, SIGNALLED, SSH_FAILED, Cause, Ending
from hvd_elastic_ext.launcher.membership import world_change
from hvd_elastic_ext.launcher.membership.world_change import Stage, WorldDecision, difference

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat
    from hvd_elastic_ext.launcher.membership.world_change import Situation, WorldLimits

log = logging.getLogger(__name__)


LOSS_CAUSES: Final = ("worker failed", "connection lost", world_change.FINISHED)
BACK_S: Final = 30.0
"""Longest time from the end of a process for a change until the next one is on standby in its seat."""


class ChangeAction(Enum):
    """What is to be done about the world."""

    NOTHING = "nothing"
    """The world stays, or too few processes are ready for one. Next: any other."""
    FORM = "form"
    """No process is in a world; the given members form the next one."""
    DRAIN = "drain"
    """All members end at one and the same step. Next: FORM, or END if one is lost on the way."""
    END = "end"
    """A member is lost: the others cannot continue, and end now. Next: FORM."""


class ChangeDecision(NamedTuple):
    """``decision``: for FORM the members; else cause and reason of the change, without members."""

    move: ChangeAction
    decision: WorldDecision


def decide(
    now: float,
    situation: Situation,
    limits: WorldLimits,
    *,
    done: Collection[ProcessId] = (),
    ended: Mapping[Seat, float] = MappingProxyType({}),
    starting_until: float = -math.inf,
) -> ChangeDecision:
    """Decide the next action. ``done``: members that ended well without an order to end.

    ``ended``: when members ended for this change (mono): their seats are being filled, and are awaited.
    ``starting_until``: until when members may be about to begin their training: newcomers do not interrupt that.
    """
    decision = world_change.decide(now, situation, limits)
    inside = frozenset(members_in(situation))
    if not inside:
        back_by = _back_by(now, situation, ended)
        if decision.members is not None and back_by is not None:
            return ChangeDecision(ChangeAction.NOTHING, WorldDecision(None, "", "some are about to be back", back_by))
        return ChangeDecision(ChangeAction.NOTHING if decision.members is None else ChangeAction.FORM, decision)
    lost = [life for life in situation.members if life not in inside]
    quiet = replace(decision, members=None)
    if any(life in done for life in lost):
        # A script without an elastic loop ends like that, one rank after the other; also where some have failed.
        return ChangeDecision(
            ChangeAction.NOTHING, WorldDecision(None, "", "some have ended well; the others are about to")
        )
    if decision.cause in LOSS_CAUSES:
        return ChangeDecision(ChangeAction.END, quiet)
    if decision.cause == "hosts added" and now < starting_until:
        return ChangeDecision(
            ChangeAction.NOTHING, WorldDecision(None, "", "newcomers wait for the others to start", starting_until)
        )
    if decision.members is not None:
        return ChangeDecision(ChangeAction.DRAIN, quiet)
    return ChangeDecision(ChangeAction.NOTHING, decision)


def _back_by(now: float, situation: Situation, ended: Mapping[Seat, float]) -> float | None:
    """Until when the next processes of ended members are awaited (mono); None if none is."""
    parked = {seat for seat, process in situation.processes.items() if process.stage is Stage.PARKED}
    until = [ended[seat] + BACK_S for seat in situation.wanted if seat in ended and seat not in parked]
    return max((at for at in until if at > now), default=None)


def members_in(situation: Situation) -> tuple[ProcessId, ...]:
    """Members of the newest world that live, in their order: messages follow it, in a replay too."""
    found = ((life, situation.processes.get(life.seat)) for life in situation.members)
    return tuple(life for life, each in found if each is not None and each.life == life and each.stage is Stage.LIVE)


# --- state


BEHIND_S: Final = 15.0
"""Longest time for a member to leave once another has left; then it is ended."""
NOTICE_S: Final = 5.0
"""Longest time for members with an elastic loop to notice a lost peer, and to report what they roll back."""


@dataclass(slots=True)
class EngineChange:
    """One change in progress. ``began``: when members first got the order; it and ``..._at`` are times (mono)."""

    move: ChangeAction
    cause: str
    reason: str
    ordered_at: float | None = None
    first_gone_at: float | None = None
    began: float | None = None

    @property
    def ends_at(self) -> float | None:
        """When the remaining members are ended (mono); None until one has gone."""
        after_s = BEHIND_S if self.move is ChangeAction.DRAIN else NOTICE_S
        return None if self.first_gone_at is None else self.first_gone_at + after_s


@dataclass(slots=True)
class Restarting:
    """The progress of a change of the world whose processes cannot change worlds."""

    announced: int
    """The newest generation that has begun."""
    change: EngineChange | None = None
    done: set[ProcessId] = field(default_factory=set)
    """Members that have ended well by themselves."""
    ended: dict[Seat, float] = field(default_factory=dict)
    """When members have ended for the change of their world (mono)."""
    blamed: bool = False
    """A process of the newest world is known to have failed."""
    peers_lost: bool = False
    """One of the newest world has ended because of another one, and not with its host."""
    errors: set[str] = field(default_factory=set)
    """By digest, the errors of members of the newest world."""
    unexplained: list[float] = field(default_factory=list)
    """When worlds have ended within an hour without a failed process (mono)."""


# --- what happens


TELL_AGAIN_S: Final = 5.0
"""Time until members that have to leave are told again: messages get lost."""


def advance(job: JobState) -> WorldDecision:
    """Form the next world once the present one has ended; until then end that."""
    now, situation = job.now, job.situation
    move, decision = decide(
        now,
        situation,
        job.options.limits,
        done=job.restarting.done,
        ended=job.restarting.ended,
        starting_until=_starting_until(job),
    )
    change = job.restarting.change
    if move is ChangeAction.FORM:
        if change is None:
            return decision
        return replace(decision, cause=change.cause, reason=f"{change.reason}; {decision.reason}")
    if change is not None and change.move is ChangeAction.DRAIN and job.restarting.blamed:
        change.move, change.cause, change.reason = ChangeAction.END, "worker failed", decision.reason
        change.first_gone_at = now
    if move is ChangeAction.DRAIN and change is None:
        job.restarting.change = EngineChange(move, _cause_of(job, decision, situation), decision.reason)
        log.info("%s: %s; all leave at their next commit, and the next world begins there", *_why(job))
    elif move is ChangeAction.END and change is None:
        job.restarting.change = EngineChange(move, decision.cause, decision.reason, first_gone_at=now)
        kept = keeps_something(job)
        begins = "begins with the last commit" if kept else "starts the script again: no commit is known"
        log.info("%s: %s; the others are ended, and the next world %s", *_why(job), begins)
    _end_members(job, now, situation)
    return WorldDecision(None, decision.cause if job.restarting.change else "", decision.reason, decision.again_at)


def look(job: JobState) -> float | None:
    """Announce a world whose ranks are known now. Returns when a process is told again, or ended (mono)."""
    rendezvous = job.rendezvous
    if job.world.inherited:
        job.restarting.announced = rendezvous.generation  # another launcher has begun its processes
    if job.world.members and rendezvous.formed and job.restarting.announced < rendezvous.generation:
        job.restarting.announced = rendezvous.generation
        ranks = {place.rank: life for life in job.world.members if (place := rendezvous.place(life)) is not None}
        job.do(actions.BeginWorld(rendezvous.generation, tuple(ranks[rank].seat.host for rank in sorted(ranks))))
    return _next_look(job)


def _next_look(job: JobState) -> float | None:
    """When a process is to be told again, or to be ended (mono)."""
    change, now = job.restarting.change, job.now
    if change is None:
        return None
    again = None if change.ordered_at is None else change.ordered_at + TELL_AGAIN_S
    return min((at for at in (again, change.ends_at) if at is not None and at > now), default=None)


def _starting_until(job: JobState) -> float:
    members = job.roster.present(job.world.members)
    return max((each.since + STARTS_S for each in members if not (each.loops or each.done)), default=-math.inf)


def _why(job: JobState) -> tuple[str, str]:
    change = job.restarting.change
    return ("", "") if change is None else (change.cause, change.reason)


def _cause_of(job: JobState, decision: WorldDecision, situation: Situation) -> str:
    """As in any job, hosts that failed and are back are not new ones."""
    inside = {life.seat for life in situation.members}
    ready = {seat.host for seat in situation.processes if seat not in inside}
    back = bool(ready) and ready <= job.fleet.recovering
    return "cooldown over" if decision.cause == "hosts added" and back else decision.cause


def world_begun(job: JobState) -> None:
    """Forget the end of the last world."""
    change, job.restarting.change = job.restarting.change, None
    job.restarting.done.clear()
    job.restarting.ended.clear()
    cut_off = not job.fleet.cut_off_live.isdisjoint(job.world.members)
    if not (job.restarting.blamed or cut_off):
        if change is None and job.restarting.peers_lost:
            _count_unexplained(job, "all processes ended because a peer was lost")
        elif change is not None and change.move is ChangeAction.END:
            _count_unexplained(job, change.reason)
    job.restarting.blamed = job.restarting.peers_lost = False
    job.restarting.errors.clear()


def _count_unexplained(job: JobState, why: str) -> None:
    budget = job.options.failure_budget
    job.restarting.unexplained = [at for at in job.restarting.unexplained if job.now - at < BUDGET_WINDOW_S] + [job.now]
    if len(job.restarting.unexplained) > budget:
        times = f"the world has ended {len(job.restarting.unexplained)} times within an hour"
        job.fail(JobFailed(f"{times} without a process that says why, more than --failure-budget allows; last: {why}"))


# --- the end of a world


def _end_members(job: JobState, now: float, situation: Situation) -> None:
    change = job.restarting.change
    if change is None:
        return
    members = job.roster.present(members_in(situation))
    if change.first_gone_at is None and len(members) < len(situation.members):
        change.first_gone_at = now
    if change.move is ChangeAction.DRAIN and (change.ordered_at is None or now >= change.ordered_at + TELL_AGAIN_S):
        change.ordered_at = now
        change.began = now if change.began is None else change.began
        _tell_to_leave(job, members, {seat.host for seat in situation.wanted}, change.reason)
    late = change.ends_at is not None and now >= change.ends_at
    # An error before any step is most likely in the script: the others are not ended, and fail with it, too.
    alike = bool(job.restarting.errors) and not any(worker.loops or worker.step for worker in members)
    for worker in members:
        if worker.leaving is None and not worker.done and (late or not (worker.loops or alike)):
            orders.end(job, worker, why=change.reason)


def _tell_to_leave(job: JobState, members: Sequence[Worker], staying: set[str], reason: str) -> None:
    """All commit at one step and end; ``check_alive()`` is False on hosts that are not in the next world."""
    generation = job.generation + 1
    looping = [worker for worker in members if worker.loops and not worker.done]
    in_s = notices.next_end_s(job)
    for leave in (False, True):
        receivers = [worker for worker in looping if (worker.seat.host not in staying) is leave]
        job.tell_all(receivers, "update", generation=generation, leave=leave, in_s=in_s, reason=reason)


# --- ends of processes


def cause_of_end(job: JobState, worker: Worker, ending: Ending, code: int) -> Ending:
    """Separate a process that failed from those that ended because of it, or on an order."""
    if worker.life not in job.world.members or ending.cause is Cause.DONE:
        return ending
    found = _cause_of_end(job, worker, ending, code)
    if found.cause is Cause.PEER_LOST and worker.seat.host not in notices.leaves_by(job):
        job.restarting.peers_lost = True
    if found.cause in (Cause.PEER_LOST, Cause.TOLD):
        job.world.not_at_fault.add(worker.life)
        job.restarting.ended[worker.seat] = job.now
    if code == 0 and found.cause is Cause.LEFT and not worker.loops:
        job.restarting.done.add(worker.life)
    job.restarting.blamed = (
        job.restarting.blamed or found.cause.fault or found.cause is Cause.LEFT or worker.killed is not None
    )
    return found


def _cause_of_end(job: JobState, worker: Worker, ending: Ending, code: int) -> Ending:
    draining = job.restarting.change is not None and job.restarting.change.move is ChangeAction.DRAIN
    if worker.leaving is not None or (draining and code in (0, START_AGAIN)):
        return Ending(Cause.TOLD, "ended for the next world")
    if worker.lost_peer is not None and ending.cause is Cause.CRASHED and not SIGNALLED < code < SSH_FAILED:
        return Ending(Cause.PEER_LOST, f"ended because a peer was lost: {worker.lost_peer}")
    if worker.failure is not None and code in (TERMINATED, START_AGAIN):
        return Ending(Cause.CRASHED, f"crashed: {worker.failure[1]}")
    if code in (TERMINATED, START_AGAIN):
        return Ending(Cause.PEER_LOST, "ended because a peer was lost")
    signalled = SIGNALLED < code < SSH_FAILED
    if worker.failure is not None and ending.cause is Cause.CRASHED:
        same = worker.failure[0] in job.restarting.errors
        job.restarting.errors.add(worker.failure[0])
        if same:
            return ending
    if ending.cause is Cause.CRASHED and job.restarting.blamed and not (signalled or job.restarting.done):
        return Ending(Cause.PEER_LOST, f"ended after another one had failed: {ending.text}")
    return ending


def world_not_begun(job: JobState, generation: int, why: str) -> None:
    """The program that starts the processes of a world has ended without starting them, or before they were done.

    Its slots are given back, and it counts as a world that ended without a failed process.
    """
    members = [worker for worker in job.roster.present(job.world.members) if not worker.done]
    if generation != job.generation or job.restarting.change is not None or not members:
        return
    if all(worker.generation >= generation for worker in members):
        return  # all have begun: they have ended, or are about to, and report themselves how
    log.warning("world %d was not begun: %s", generation, why)
    job.restarting.change = EngineChange(ChangeAction.END, "worker failed", why, first_gone_at=job.now)
    for worker in members:
        orders.end(job, worker, why=why)


# --- what the job waits for


def waits(job: JobState) -> Wait | None:
    """Processes that end on purpose, because the next world has others: on a busy machine an exit takes seconds."""
    change = job.restarting.change
    members = [each for each in job.roster.present(job.world.members) if each.killed is None and not each.done]
    if change is None or change.move is not ChangeAction.DRAIN or not members:
        return None
    what = (
        f"for the end of world {job.generation}, as the next one begins: {first_few([each.seat for each in members])}"
    )
    then = ", then they are ended, and the next world begins"
    return Wait(what, change.ends_at, then, ends="it ends when they have come to their next commit, and left")


# --- the table of engines


def _decide(job: JobState) -> WorldDecision:
    return world_change.decide_by(job.now, difference(job), job.options.limits)


class Engine(NamedTuple):
    """What planners ask of an engine. The defaults are for Horovod, whose processes live through changes of their
    world.
    """

    advance: Callable[[JobState], WorldDecision] = _decide
    """Which processes form the next world now, if any. Ends members that have to end before that."""
    world_begun: Callable[[JobState], None] = lambda job: None
    """Note that the world of the decision is called now."""
    look: Callable[[JobState], float | None] = lambda job: None
    """Do what is due after a decision. Returns when something is due next (mono)."""
    cause_of_end: Callable[[JobState, Worker, Ending, int], Ending] = lambda job, worker, ending, code: ending
    """The cause of a process's end, by what the engine knows beyond its exit code."""
    world_not_begun: Callable[[JobState, int, str], None] = lambda job, generation, why: None
    """The program that starts the processes of a world has failed, or has ended before they were done."""


_IN_PLACE: Final = Engine()
_RESTARTING: Final = Engine(advance, world_begun, look, cause_of_end, world_not_begun)


def engine_of(job: JobState) -> Engine:
    """The engine of a job."""
    return _IN_PLACE if job.in_place else _RESTARTING
