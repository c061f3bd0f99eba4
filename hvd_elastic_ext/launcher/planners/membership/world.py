"""One world after the other: its members are called together, and given their ranks when all have come."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from hvd_elastic_ext.launcher.engines.engine import engine_of
from hvd_elastic_ext.launcher.planners.membership import custody
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.membership.custody import Loss
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Limits, Stage, decide, in_order
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat, places
from hvd_elastic_ext.launcher.state import actions, orders, resize_report
from hvd_elastic_ext.launcher.state.job import JobState
from hvd_elastic_ext.launcher.state.plan import NOTHING, Plan
from hvd_elastic_ext.launcher.state.roster import Worker

TELL_AGAIN_S: Final = 5.0
"""A member that was told of a change and has not come is told again after this time."""
NOTICE_S: Final = 0.25
"""How long a member of a world that lost somebody may take to notice before its connections are cut for it."""
STUCK_S: Final = 8.0
"""How long a member whose connections were cut may go on waiting for a peer that it lost.

Gloo tells all who wait on a connection of its end, but not one that has handed over something that is not all sent:
that one waits out Gloo's 30 s, and everybody else for it.
"""
MENDING: Final = ("worker failed", "connection lost")


def answer_due(job: JobState) -> Plan:
    """Answer the questions of processes whose time has come."""
    job.answer(job.rendezvous.due(job.now))
    return NOTHING


def answer_next(job: JobState) -> Plan:
    """Look again when the next question has to be answered."""
    return Plan(job.rendezvous.next_due())


def plan(job: JobState) -> Plan:
    """Form the newest world when all of its members have come, and call those again that have not."""
    deal(job, job.wanted)
    engine_at = engine_of(job).look(job)
    tell_again(job)
    uncut = job.roster.present(job.world.members if job.world.fences and not job.formed else ())
    times = [engine_at, custody.next_look(job), *(worker.fence_at for worker in uncut)]
    return Plan(min((at for at in times if at is not None and at > job.now), default=None))


def change(job: JobState, decision: Decision) -> None:
    """Begin the world that was decided on."""
    members = decision.members
    assert members is not None
    before = job.world.members
    old, new = frozenset(before), frozenset(members)
    joining = {life.seat.host for life in new - old}
    if decision.cause == "hosts added" and joining <= job.fleet.recovering:
        decision = replace(decision, cause="cooldown over")
    job.fleet.recovering -= joining
    living = {worker.life for worker in job.roster.present(before)}
    job.world.lost.update(life.seat.host for life in before if life not in living and life not in job.world.excused)
    job.world.excused.clear()
    job.world.left_out = (old if job.formed else job.world.left_out | old) - new
    job.world.changes += bool(job.world.begun and job.formed)
    job.world.mended += bool(job.world.begun and job.formed and decision.cause in MENDING)
    job.world.own = True
    job.generation += 1
    job.answer(job.rendezvous.form(job.generation, members))
    job.world.members, job.world.decision = members, decision
    job.world.provisional = {}
    _call(job, job.roster.present(members))
    for worker in job.roster.present(life for life in before if life not in new):
        if worker.leaving is None and not worker.done:
            orders.remove(job, worker, decision.reason)


def _call(job: JobState, members: Sequence[Worker]) -> None:
    """Have the members of the newest world come to it."""
    now, waiting = job.now, job.rendezvous.waiting
    # Whoever is lost may be waited for by all the others. Most notice by themselves, and at once.
    job.world.fences = job.world.decision.cause in MENDING or _torn(job)
    fence_at = now + NOTICE_S if job.world.fences else None
    job.world.late_from = now + NOTICE_S
    absent: list[Worker] = []
    for worker in members:
        worker.told_at = now
        if worker.stage is Stage.PARKED:
            worker.stage, worker.since, worker.live_at = Stage.LIVE, now, now
            absent.append(worker)
        elif worker.life not in waiting:
            worker.fence_at = fence_at
            absent.append(worker)
    _summon(job, absent)


def _torn(job: JobState) -> bool:
    """Whether one that was let go was cut off before all had left the world that it was in."""
    return not job.world.left_out.isdisjoint(job.fleet.cut_off_live)


def _see_torn(job: JobState, now: float) -> None:
    """Members that are still in a world with one that was cut off wait for it, though they were to go on."""
    if job.world.fences or not _torn(job):
        return
    job.world.fences = True
    for worker in job.roster.present(job.world.members):
        if worker.generation and worker.life not in job.rendezvous.waiting:
            worker.fence_at = now


def _summon(job: JobState, members: Iterable[Worker]) -> None:
    """Tell members to come: those that were in no world yet to go live, the others to leave the one they are in."""
    now, elsewhere = job.now, list[Worker]()
    for worker in members:
        worker.told_at = now
        if worker.generation or job.rendezvous.placed(worker.life):
            elsewhere.append(worker)
        else:
            _go(job, worker)
    _update(job, elsewhere)


def _go(job: JobState, worker: Worker) -> None:
    job.world.provisional = job.world.provisional or places(_by_seniority(job, job.world.members))
    provisional = job.world.provisional[worker.life]  # Horovod asks for the real one
    job.do(actions.GoLive(worker.life, job.generation, provisional))


def _by_seniority(job: JobState, lives: Iterable[Life]) -> list[Life]:
    senior = {name: number for number, name in enumerate(job.fleet.hosts.names)}
    return sorted(lives, key=lambda life: (senior.get(life.seat.host, len(senior)), life))


def _update(job: JobState, workers: Sequence[Worker]) -> None:
    ends = [by - job.now for host, by in job.leaves_by.items() if job.roster.on(host)]
    in_s = max(0.0, min(ends)) if ends and min(ends) < math.inf else None
    reason = job.world.decision.reason
    job.tell_all(workers, "update", generation=job.generation, leave=False, in_s=in_s, reason=reason)


def tell_peers(job: JobState, host: str | None = None) -> None:
    """Tell members, of one host or of all, how to find their peers from the next world on."""
    for worker in job.roster.workers.values():
        if worker.stage is Stage.LIVE and host in (None, worker.seat.host):
            job.do(actions.TellPeers(worker.life))


def deal(job: JobState, wanted: tuple[Seat, ...]) -> None:
    """Tell the members of the newest world their ranks, once all of them ask and it may form."""
    if not job.world.members or not job.rendezvous.ready:
        return
    processes = job.roster.processes(broken=frozenset(), leaves_by={})
    if not all(life.seat in processes for life in job.world.members):
        return
    may, loss = custody.may_form(job)
    if not may:
        return
    order = in_order([processes[life.seat] for life in job.world.members], wanted)
    answers = job.rendezvous.deal(order)
    for rank, life in enumerate(order):
        worker = job.roster.alive(life)
        assert worker is not None
        worker.fence_at = worker.fenced_at = None
        _name_world(job, worker, rank, len(order))
    job.answer(answers)
    _journal(job, order, custody.formed(job, loss), loss)


def name_world_again(job: JobState, worker: Worker) -> None:
    """Say once more in which world a process has its place, before it is told the place once more."""
    place = job.rendezvous.place(worker.life)
    if place is not None:
        _name_world(job, worker, place.rank, place.size)


def _name_world(job: JobState, worker: Worker, rank: int, size: int) -> None:
    job.tell(worker, "world", generation=job.generation, rank=rank, size=size)


def _journal(job: JobState, order: tuple[Life, ...], steps: int | None, loss: Loss | None) -> None:
    after = Counter(life.seat.host for life in order)
    before, job.world.before = job.world.before, after
    lost, job.world.lost = job.world.lost, Counter()
    resize_report.changed(
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
    )


def tell_again(job: JobState) -> None:
    """Messages get lost: members that have not come are told once more."""
    resize_report.look(job)
    now, waiting = job.now, job.rendezvous.waiting
    if job.formed or now < job.world.late_from:
        return
    _see_torn(job, now)
    late: list[Worker] = []
    for worker in job.roster.present(job.world.members):
        if worker.fence_at is not None and (worker.life in waiting or now >= worker.fence_at):
            worker.fence_at = None
            if worker.life not in waiting:
                job.tell(worker, "fence", addresses=None)
                worker.fenced_at = now
        if worker.fenced_at is not None and now - worker.fenced_at >= STUCK_S:
            _free(job, worker)
        told = -math.inf if worker.told_at is None else worker.told_at  # it was cut off, and is back
        if worker.life not in waiting and now - told >= TELL_AGAIN_S:
            late.append(worker)
    _summon(job, late)


def _free(job: JobState, worker: Worker) -> None:
    """End a process that nothing else gets out of a world that is lost. It comes back, with its last commit."""
    worker.fenced_at = None
    if worker.waiting and worker.life not in job.rendezvous.waiting:
        reason = f"{STUCK_S:g} s after its connections were cut it still waits for a peer that it lost"
        job.record("fenced", host=worker.seat.host, slot=worker.seat.slot, reason=reason)
        orders.kill(job, worker, Cause.PEER_LOST)


def finish(job: JobState) -> None:
    """Some process is done and has ended: members that lost the world with it do what is left among themselves."""
    alive = job.roster.present(job.world.members)
    rest = [worker for worker in alive if not worker.done and worker.killed is None]
    if not any(worker.life in job.rendezvous.waiting for worker in rest):
        return
    wanted = tuple(worker.seat for worker in rest)
    decision = decide(job.now, job.situation_for(wanted), Limits())  # however few they are
    if decision.members is not None:
        change(job, decision)
    deal(job, wanted)
    tell_again(job)


def take_over(job: JobState) -> None:
    """Go on with the world that processes of another launcher are in.

    Again when more of them are back: until a world is formed here, those of the same one belong together.
    """
    if job.world.own:
        return
    workers = [*job.roster.workers.values(), *(worker for worker, _ in job.fleet.unreported_ends.values())]
    for worker in workers:
        job.world.found.setdefault(worker.life, worker.generation)
    newest = max((job.world.found[worker.life] for worker in workers), default=0)
    members = _by_seniority(job, (life for life, found in job.world.found.items() if newest and found == newest))
    # Numbers may have been given to worlds that never formed; the next one is beyond all of them.
    job.generation = max(job.generation, newest)
    if not members:
        return
    job.world.provisional = places(members)
    job.rendezvous.adopt(job.generation, job.world.provisional)
    for worker in job.roster.present(members):
        worker.generation = worker.agreed = job.generation
    job.world.members, job.world.begun = tuple(members), True
    job.world.before = Counter(life.seat.host for life in members)
