"""Forms worlds: decides that another one forms, calls its members, and gives them their ranks when all have asked.

A look decides by :func:`~hvd_elastic_ext.launcher.membership.world_change.decide`, and asks what may hold the world
back (custody, a checkpoint to load, the last checkpoint). The members are then called, all at once; each leaves its
world at the same step, rolls back if it must, and asks for its rank. Nobody gets one before all have asked: then all
are alive.
A member that still waits for a lost peer :data:`STUCK_S` after its connections were cut is stuck, and killed.
"""

from __future__ import annotations

import base64
import binascii
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.custody import custody
from hvd_elastic_ext.launcher.custody.custody import next_look
from hvd_elastic_ext.launcher.departures import clean_exits, notices
from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.driver.roster import GO_LIVE_S, STARTS_S, Worker
from hvd_elastic_ext.launcher.driver.words import Wait, first_few
from hvd_elastic_ext.launcher.health import liveness, stalls
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.strikes import not_waited_for
from hvd_elastic_ext.launcher.membership import resizes
from hvd_elastic_ext.launcher.membership.in_place_or_restarted import LOSS_CAUSES, engine_of
from hvd_elastic_ext.launcher.membership.rendezvous import Question, is_for_a_rank, places
from hvd_elastic_ext.launcher.membership.world_change import (
    FINISHED,
    STILL_FORMING,
    Stage,
    WorldDecision,
    WorldLimits,
    decide,
    in_order,
)

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.custody.custody import CommitLoss
    from hvd_elastic_ext.launcher.driver.actions import WorldQuestion
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

log = logging.getLogger(__name__)


@dataclass(slots=True)
class World:
    """The newest world: its members, its progress, and why it was formed."""

    members: tuple[ProcessId, ...] = ()
    begun: bool = False
    """Training has begun: some world has formed."""
    changes: int = 0
    """Worlds formed since the first one."""
    rollbacks: int = 0
    """How many of them followed a lost world: each is a roll-back."""
    not_at_fault: set[ProcessId] = field(default_factory=set)
    """Members of the newest world that have ended by order, or because of others."""
    behind: dict[ProcessId, str] = field(default_factory=dict)
    """Those that were ended because they were in an earlier training call than others, and why."""
    decision: WorldDecision = field(default_factory=lambda: WorldDecision(None, "", ""))
    """Why it was formed."""
    provisional: Mapping[ProcessId, Place] = field(default_factory=dict)
    """The place that each member shows until it has its rank; made at first use."""
    own: bool = False
    """A world was formed by this launcher."""
    found: dict[ProcessId, int] = field(default_factory=dict)
    """Generation of each process of an earlier launcher when it was found."""
    fences: bool = False
    """Connections of members that do not notice the loss of their world are cut."""
    left_out: frozenset[ProcessId] = frozenset()
    """Former members that are not in this world. While it forms, members may still wait for them."""
    late_from: float = 0.0
    """No called member counts as late before then (mono)."""
    before: Counter[str] = field(default_factory=Counter)
    """By host, members of the last world that has formed."""
    lost: Counter[str] = field(default_factory=Counter)
    """By host, members that were lost since a world last formed."""
    seats_before: frozenset[Seat] = frozenset()
    """The seats of the members in ``before``."""
    seats_lost: set[Seat] = field(default_factory=set)
    """The seats of the members in ``lost``."""
    called_in: frozenset[Seat] = frozenset()
    """Seats of spares that were called to it, or to a world before it that has not formed."""
    trains_alone: str | None = None
    """How it is known that each rank trains alone, in this world or an earlier one; None if it does not."""

    @property
    def inherited(self) -> bool:
        """Whether the newest world was formed by an earlier launcher."""
        return bool(self.members) and not self.own


# --- what processes say and ask


def entered(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """A process is in a world."""
    # This may be late, when the next world forms already. Without a generation it is the newest world.
    generation = message.get("generation") or job.generation
    newest = generation if isinstance(generation, int) and generation <= job.generation else -1
    worker.failure = worker.lost_peer = None  # of a program that ran before
    if worker.generation < newest:
        worker.generation, worker.since, worker.moved_at = newest, job.now, 0.0
        if worker.stage is not Stage.LIVE:  # its rank is from the launcher before, which died before it knew of this
            worker.went_live(job.now)
        job.world.begun = True


def asked(job: JobState, worker: Worker, news: Mapping[str, Any]) -> None:
    """A question of a process to the rendezvous."""
    try:
        body = base64.b64decode(news.get("body") or "", validate=True)
        number, method, path = int(news["id"]), str(news["method"]), str(news["path"])
    except (binascii.Error, KeyError, OverflowError, TypeError, ValueError):
        log.warning("%s sent an invalid rendezvous question", worker.seat)
        return
    if is_for_a_rank(method, path):
        _asked_for_a_rank(job, worker, number)
        return
    job.answer(job.rendezvous.ask(Question(worker.life, number, method, path, body), job.now))


def _asked_for_a_rank(job: JobState, worker: Worker, number: int) -> None:
    meeting, place = job.rendezvous, job.rendezvous.place(worker.life)
    answers = meeting.ask_for_rank(worker.life, number)
    if answers and place is not None:
        orders.name_world(job, worker, place.rank, place.size)
    job.answer(answers)
    if worker.leaving is not None and worker.life in meeting.waiting:
        worker.stopping_at = job.now  # it has left its world; any answer would abort it


def withdrawn(job: JobState, worker: Worker, news: Mapping[str, Any]) -> None:
    """It does not wait for the answer any more."""
    if isinstance(number := news.get("id"), int):
        job.rendezvous.withdraw(worker.life, number)


# --- planner: does another world form?


def choose(job: JobState, questions: Sequence[WorldQuestion]) -> Plan:
    """Decide on the next world, unless an answer to the ``questions`` holds it back."""
    before, held = job.decision, clean_exits.why_not(job)
    job.decision = engine_of(job).advance(job) if held is None else held
    for question in questions:
        if (held_back := question.why_not(job)) is not None:
            job.decision = WorldDecision(None, "", *held_back)
    decision, limit = job.decision, job.options.reset_limit
    if decision.reason != before.reason:
        log.debug("%s%s", f"{decision.cause}: " if decision.cause else "", decision.reason)
    changes = decision.members is not None and job.world.begun
    if changes and limit is not None and job.world.changes >= limit:
        job.fail(JobFailed(f"the world would change for the {limit + 1}th time; --reset-limit is {limit}"))
    return Plan(decision.again_at)


# --- planner: the world forms


CALL_AGAIN_S: Final = 5.0
"""Pause before a member that was called, and has not asked for its rank, is called again."""
NOTICE_S: Final = 0.25
"""How long a member may take to notice that a peer is lost before its connections are cut."""
STUCK_S: Final = 8.0
"""Longest wait for others after a member's connections were cut; then it is killed.

Gloo reports a closed connection to all that wait on it, but not to a process whose data is partly sent, or that has
noticed it by its send. That process waits for Gloo's timeout (30 s under Horovod, half an hour under torch), and all
others wait for it.
"""


def answer_due(job: JobState) -> Plan:
    """Answer the questions of processes that have waited long enough; look again when the next one will have."""
    job.answer(job.rendezvous.due(job.now))
    return Plan(job.rendezvous.next_due())


def answers_due_at(job: JobState) -> float | None:
    """When the next question will have waited long enough (mono). A question for a key is no reason for a look."""
    return job.rendezvous.next_due()


def is_answer_due(job: JobState) -> bool:
    """Whether a question has waited long enough now."""
    at = job.rendezvous.next_due()
    return at is not None and at <= job.now


def plan(job: JobState) -> Plan:
    """Give ranks when all members of the newest world have asked, and call the others again."""
    _assign_ranks(job, job.wanted)
    engine_at = engine_of(job).look(job)
    _tell_again(job)
    uncut = job.roster.present(job.world.members) if job.world.fences and not job.formed else ()
    times = [engine_at, next_look(job), *(worker.fence_at for worker in uncut)]
    return Plan(min((at for at in times if at is not None and at > job.now), default=None))


def begin(job: JobState) -> Plan:
    """Begin the world of the decision, unless the end of the last one fails the job."""
    if job.decision.members is not None:
        engine_of(job).world_begun(job)
        if job.outcome.failure is None:
            _change(job, _without_those_behind(job, job.decision), job.decision.members)
            job.save()
    return NOTHING


def _without_those_behind(job: JobState, decision: WorldDecision) -> WorldDecision:
    """The decision with the right cause: members that are behind have not failed. They were left out of a world for
    which there was another cause.
    """
    world = job.world
    if not world.behind:
        return decision
    others = [life for life in job.roster.absent(world.members) if life not in world.behind]
    others += [each.life for each in job.roster.present(world.members) if each.killed and not each.behind]
    if decision.cause == "worker failed" and not others and not job.formed:
        decision = replace(decision, cause=world.decision.cause, reason=world.decision.reason)
    return replace(decision, reason="; ".join([decision.reason, *world.behind.values()]))


def _change(job: JobState, decision: WorldDecision, members: tuple[ProcessId, ...]) -> None:
    world = job.world
    before = world.members
    old, new = job.rendezvous.members, frozenset(members)
    liveness.others_continue(job, new)
    joining = {life.seat.host for life in new - old}
    called_in = {each.seat for each in job.roster.present(members) if each.spare and each.life in new - old}
    if decision.cause == "hosts added" and joining <= job.fleet.recovering:
        decision = replace(decision, cause="cooldown over")
    job.fleet.recovering -= joining
    blameless = world.not_at_fault | job.liveness.finished.keys()
    lost = [life.seat for life in job.roster.absent(before) if life not in blameless]
    world.lost.update(seat.host for seat in lost)
    world.seats_lost.update(lost)
    world.not_at_fault.clear()
    world.behind.clear()
    formed = job.formed
    world.left_out = (old if formed else world.left_out | old) - new
    job.fleet.cut_off_live &= world.left_out  # no member waits for the others any more
    if world.begun and job.formed:
        world.changes += 1
        world.rollbacks += decision.cause in LOSS_CAUSES
    world.own = True
    job.generation += 1
    job.answer(job.rendezvous.form(job.generation, new))
    world.members, world.decision, world.provisional = members, decision, {}
    world.called_in = frozenset(called_in | (world.called_in if not formed else frozenset()))
    _call_members(job, job.roster.present(members))
    for worker in [worker for life in before if life not in new and (worker := job.roster.alive(life)) is not None]:
        if worker.leaving is None and not worker.done:
            orders.remove(job, worker, decision.reason)


def _call_members(job: JobState, members: Sequence[Worker]) -> None:
    """Call the members of the newest world."""
    now, waiting = job.now, job.rendezvous.waiting
    # All others may wait for a lost member. Most of them notice at once by themselves.
    job.world.fences = job.world.decision.cause in LOSS_CAUSES or _waits_for_fenced(job)
    fence_at = now + NOTICE_S if job.world.fences else None
    job.world.late_from = now + NOTICE_S
    absent: list[Worker] = []
    for worker in members:
        worker.called_at = now
        if worker.stage is Stage.PARKED:
            worker.went_live(now)
            absent.append(worker)
        elif not waiting or worker.life not in waiting:
            worker.fence_at = fence_at
            absent.append(worker)
    _tell_members(job, absent)


def _waits_for_fenced(job: JobState) -> bool:
    """Whether a process left out of this world was cut off, or died, while it was in the world before."""
    return not job.world.left_out.isdisjoint(job.fleet.cut_off_live)


def _fence_late(job: JobState, now: float) -> None:
    """Cut connections of members that are still in a world with such a process: they wait for it."""
    if job.world.fences or not _waits_for_fenced(job):
        return
    job.world.fences = True
    for worker in job.roster.present(job.world.members):
        if worker.generation and worker.life not in job.rendezvous.waiting:
            worker.fence_at = now


def _tell_members(job: JobState, members: Iterable[Worker]) -> None:
    """Tell members to go live, or to leave the world that they are in."""
    now, elsewhere, placed = job.now, list[Worker](), job.rendezvous.placed
    later = any(worker.loops and worker.generation for worker in job.roster.present(job.world.members))
    for worker in members:
        worker.called_at = now
        if worker.generation or placed(worker.life):
            elsewhere.append(worker)
        else:
            _send_go_live(job, worker, later=later)
    reason, in_s = job.world.decision.reason, notices.next_end_s(job)
    job.tell_all(elsewhere, "update", generation=job.generation, leave=False, in_s=in_s, reason=reason)


def _send_go_live(job: JobState, worker: Worker, *, later: bool) -> None:
    job.world.provisional = job.world.provisional or places(job.fleet.by_seniority(job.world.members))
    provisional = job.world.provisional[worker.life]  # Horovod asks for the final place
    job.do(actions.GoLive(worker.life, job.generation, provisional, later))


def _assign_ranks(job: JobState, wanted: tuple[Seat, ...]) -> None:
    """Give the members of the newest world their ranks, once all ask for them and the world may form."""
    if not job.world.members or not job.rendezvous.ready:
        return
    present = job.roster.present(job.world.members)
    if len(present) < len(job.world.members) or not all(map(_may_be_ranked, present)):
        return
    may, loss = custody.may_form(job)
    if not may:
        return
    order = _order(job, present, wanted)
    dealt = job.rendezvous.assign_ranks(order)
    for worker in present:
        worker.fence_at = worker.fenced_at = None
        worker.rank = None if (place := job.rendezvous.place(worker.life)) is None else place.rank
    job.do(actions.AssignRanks(job.generation, dealt))
    _journal(job, order, custody.world_formed(job, loss), loss)


def _order(job: JobState, present: Sequence[Worker], wanted: tuple[Seat, ...]) -> tuple[ProcessId, ...]:
    held = job.roster.commits.held.get
    found = [held(each.life.seat) for each in present]
    holds = [None if each is None else each.commit for each in found]
    return in_order([each.life for each in present], wanted, holds=holds, trained=[each.agreed > 0 for each in present])


def _may_be_ranked(worker: Worker) -> bool:
    """Whether a process is not about to end."""
    return worker.killed is None and (worker.leaving is None or worker.stage is Stage.LIVE)


def _journal(job: JobState, order: tuple[ProcessId, ...], steps: int | None, loss: CommitLoss | None) -> None:
    after = Counter(life.seat.host for life in order)
    before, job.world.before = job.world.before, after
    lost, job.world.lost = job.world.lost, Counter()
    slots_before = {host: count for host, count in before.items() if after[host] not in (0, count)}
    seats = frozenset(life.seat for life in order)
    seats_before, job.world.seats_before = job.world.seats_before, seats
    seats_lost, job.world.seats_lost = job.world.seats_lost, set()
    stay = {host for host in before if after[host]}
    slots = {
        "slots_added": _of_hosts(stay, seats - seats_before, but=seats),
        "slots_removed": _of_hosts(stay, seats_before - seats, but=seats_before),
        "slots_failed": _of_hosts(stay, seats_lost, but=seats_before),
    }
    resizes.changed(
        job,
        order[0],
        cause=job.world.decision.cause,
        reason=job.world.decision.reason,
        added=[host for host in after if after[host] > before[host]],
        removed=[host for host in before if before[host] > after[host]],
        size=len(order),
        hosts=after,
        failed=lost,
        lost=steps,
        **({} if loss is None else {"lost_because": loss.why}),
        **({"slots_before": slots_before} if slots_before else {}),
        **{name: by_host for name, by_host in slots.items() if by_host},
        **({"spares": sorted(map(str, called_in))} if (called_in := job.world.called_in & seats) else {}),
        **({"without": without} if (without := not_waited_for(job)) else {}),
    )


def _of_hosts(hosts: Set[str], seats: Set[Seat], *, but: Set[Seat]) -> dict[str, list[int]]:
    """By host, the numbers of its slots in ``seats``; without hosts of which all slots in ``but`` are."""
    found: dict[str, list[int]] = {}
    for seat in sorted(seat for seat in seats if seat.host in hosts):
        found.setdefault(seat.host, []).append(seat.slot)
    others = {seat.host for seat in but - seats} if found else set[str]()
    return {host: slots for host, slots in found.items() if host in others}


def _tell_again(job: JobState) -> None:
    """Call members again that have not asked for their ranks: messages get lost."""
    resizes.look(job)
    now, waiting = job.now, job.rendezvous.waiting
    if job.formed or now < job.world.late_from:
        return
    _fence_late(job, now)
    late: list[Worker] = []
    for worker in job.roster.present(job.world.members):
        if worker.fence_at is not None and (worker.life in waiting or now >= worker.fence_at):
            worker.fence_at = None
            if worker.life not in waiting:
                job.tell(worker, "fence")
                worker.fenced_at = now
        if worker.life not in waiting and _is_stuck(worker):
            _kill_stuck(job, worker)
        called_at = (
            -math.inf if worker.called_at is None else worker.called_at
        )  # None: it was disconnected, and is back
        if worker.life not in waiting and now - called_at >= CALL_AGAIN_S:
            late.append(worker)
    _tell_members(job, late)


def _is_stuck(worker: Worker) -> bool:
    """Whether, by its heartbeats, it has always waited for others since its connections were cut: in an operation of
    the lost world, while it leaves that world, or while it connects to a world that was lost before it formed.

    A computation may take long, and a stopped process sends no heartbeat: neither counts.
    """
    if worker.fenced_at is None or worker.killed is not None:
        return False
    return worker.waits_until - max(worker.fenced_at, worker.waits_since) >= STUCK_S


def _kill_stuck(job: JobState, worker: Worker) -> None:
    """Kill a process that is stuck in a lost world. Its successor continues from its last commit."""
    worker.fenced_at = None
    reason = f"{STUCK_S:g} s after its connections were cut it still waits for a peer that it lost"
    job.record("fenced", host=worker.seat.host, slot=worker.seat.slot, reason=reason)
    orders.kill(job, worker, Cause.PEER_LOST)


def finish(job: JobState) -> Plan:
    """While the job ends: write the cost of the last change, and let members finish that are not done yet."""
    if job.ending:
        resizes.close(job)
        if job.outcome.failure is None:
            _finish(job)
    return NOTHING


def _finish(job: JobState) -> None:
    """A process that is done has ended. Members that lost the world by that finish in a world of their own."""
    alive = job.roster.present(job.world.members)
    rest = [worker for worker in alive if not (worker.done or worker.is_newcomer) and worker.killed is None]
    if not any(worker.life in job.rendezvous.waiting for worker in rest):
        return
    wanted = tuple(worker.seat for worker in rest)
    decision = decide(job.now, job.situation_for(wanted), WorldLimits())  # of any size
    if decision.members is not None:
        _change(job, _without_the_done(job, decision), decision.members)
    _assign_ranks(job, wanted)
    _tell_again(job)


def _without_the_done(job: JobState, decision: WorldDecision) -> WorldDecision:
    """The decision with the right cause: members that are done with training have not failed."""
    lost = {life for life in job.world.members if job.roster.alive(life) is None}
    if not lost or not lost <= job.liveness.finished.keys():
        return decision
    names = ", ".join(str(life.seat) for life in sorted(lost))
    return replace(decision, cause=FINISHED, reason=f"done with training: {names}")


# --- what the job waits for


RANKED: Final = "it ends when its newest commit is where it is needed, or a process has failed"


def waits_to_form(job: JobState) -> Wait:
    """While the members of the newest world have no ranks: for those that have not asked, or for its commit."""
    waiting = job.rendezvous.waiting
    done = {worker.life for worker in job.roster.present(job.world.members) if worker.done}
    absent = [life for life in job.world.members if life not in waiting and life not in done]
    what = f"world {job.generation} forms"
    if done and not absent:
        what += f" when those that are done with training have ended: {first_few([each.seat for each in sorted(done)])}"
        return Wait(what, ends="it ends with the script there; Ctrl-C ends the job")
    if not absent:
        return Wait(what, ends=RANKED)
    what += f": not there yet: {first_few([life.seat for life in absent])}"
    members = [worker for worker in job.roster.present(job.world.members) if not worker.generation]
    new = [each.live_at for each in members if each.live_at is not None and each.life not in waiting]
    if len(new) < len(absent):
        limit_s = stalls.missing_limit_s(job)
        then = f"reported as stalled after {limit_s:g} s without progress"  # a step in the last world may take long
        return Wait(what, ends=f"it ends when they next call state.commit() or end; {then}")
    return Wait(what, min(new) + GO_LIVE_S, ", then a newcomer that is not there is ended")


INITIALIZED: Final = "it ends when that process has called hvd.init(), or has failed"
CONNECTED: Final = "it ends when they are connected, or one has failed"
FIREWALL: Final = "; look for a firewall between the hosts"
FIREWALL_S: Final = 10.0
"""After this many seconds without a connection, the line of a world on several hosts names firewalls."""
AGREED: Final = "it ends when they have the commit, or one has failed"


def waits_for_first_step(job: JobState) -> Wait | None:
    """A world that has formed and does not train yet. A world that trains costs no look at its members."""
    what = f"for the first step of world {job.generation}"
    if job.decision.reason == STILL_FORMING.reason:
        members = job.roster.present(job.world.members)
        outside = [worker.life.seat for worker in members if worker.generation < job.generation]
        if outside and len(members) == 1:
            return Wait(f"{what}: not initialized yet: {first_few(outside)}", ends=INITIALIZED)
        if outside:
            lasts_s = job.now - max(worker.called_at or job.now for worker in members)
            apart = lasts_s >= FIREWALL_S and len({worker.seat.host for worker in members}) > 1
            ends = CONNECTED + (FIREWALL if apart else "")
            return Wait(f"{what}: not connected to the others yet: {first_few(outside)}", ends=ends)
        behind = [worker.life.seat for worker in members if worker.agreed < job.generation]
        if behind and any(worker.loops for worker in members):  # without an elastic loop they may train already
            return Wait(f"{what}: no agreement on the state yet: {first_few(behind)}", ends=AGREED)
    change = job.resize.change
    if change is None:
        return None if job.in_place else _begins(job, what)
    then = ", then the world is reported without its downtime"
    return Wait(f"{what} by rank 0 ({change.first.seat})", change.report_due, then)


def _begins(job: JobState, what: str) -> Wait | None:
    """New processes of a world that was reported before their first step: most of that time goes into imports."""
    members = job.roster.present(job.world.members)
    if not members or any(each.step or each.step_s or each.holds or each.done for each in members):
        return None
    absent = [each.seat for each in members if not each.loops]
    if not absent:
        return Wait(what, ends="it ends with that step, or when a process has failed")
    until = max(each.since for each in members) + STARTS_S
    if job.now >= until:
        return None  # a script without an elastic loop may train without reporting steps
    return Wait(f"{what}: imports and preparations by {first_few(absent)}", until, ", then no first step is waited for")
