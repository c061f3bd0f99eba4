"""Processes: those in wanted seats are started, run and ask for a world; those that are not needed are ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.core.messages.rank_info import Place
from hvd_elastic_ext.launcher.checkpoints import restore
from hvd_elastic_ext.launcher.driver import actions, orders
from hvd_elastic_ext.launcher.driver.actions import Plan
from hvd_elastic_ext.launcher.driver.roster import Worker
from hvd_elastic_ext.launcher.driver.words import Wait, first_few
from hvd_elastic_ext.launcher.health import strikes
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.host_requests import Starting
from hvd_elastic_ext.launcher.health.loopless import WorldPhase, world_outcome
from hvd_elastic_ext.launcher.membership import calls, shortage
from hvd_elastic_ext.launcher.membership.devices import local_ranks
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.shortage import NOT_CONNECTED, NOT_READY
from hvd_elastic_ext.launcher.membership.spares import is_spare, slot_of
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent


# --- what happens


def started(job: JobState, worker: Worker, news: Mapping[str, Any]) -> None:
    """A process runs. Its agent may report this more than once."""
    pid = news.get("pid")
    if worker.started or type(pid) is not int:
        return
    worker.started, worker.pid = True, pid
    place = {"rank": worker.planned, "local_rank": worker.local_rank}
    job.record("spawned", host=worker.seat.host, slot=worker.seat.slot, pid=worker.pid, **place)


def parked(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """It has no world, and asks for one."""
    calls.note_call(job, worker, message.get("call"))
    if worker.stage is Stage.LIVE:
        return
    if message.get("at") == "init" and message.get("later") is True:
        worker.at_init = worker.at_init or worker.stage is Stage.BOOTING  # the next look decides whether it is ready
        return
    first = worker.stage is Stage.BOOTING and worker.told_in is None
    worker.stage, worker.since = Stage.PARKED, job.now
    if worker.told_in == worker.call:
        calls.not_found(job, worker)
    if first:
        job.record("parked", host=worker.seat.host, slot=worker.seat.slot)


# --- planner


LEAVE_S: Final = 30.0
"""Longest time for a process to leave at its next step after another member has left; then it is ended.

Until one has left, all may be in a long evaluation, and ending one would cost the others their steps.
"""


def plan(job: JobState) -> Plan:
    """Start processes in wanted seats; end those that are not needed or do not get ready."""
    wanted, members = _startable(job), job.world.members
    now, kept = job.now, frozenset(map(id, job.roster.present(members)))
    for seat, place, neighbours in _plans(job, wanted, joining=bool(members)) if _may_start(job) else ():
        if _is_free(job, seat):
            _start(job, job.roster.agents[seat.host], seat, place, neighbours=neighbours, standby=bool(members))
    # A live process that is not a member lost its link, and its world went on without it.
    others = _others(job, kept)
    needed = frozenset((*wanted, *job.spares)) if others else frozenset[Seat]()
    for worker in others:
        useful = worker.seat in needed and worker.stage is not Stage.LIVE
        if not useful and id(worker) not in kept and worker.leaving is None and not worker.done:
            orders.remove(job, worker, "it is not needed")
        boots = worker.stage is Stage.BOOTING and not worker.at_init  # else it waits for others
        if boots and now - worker.since > job.options.standby_timeout_s:
            detail = f"{worker.seat} did not get ready in time"
            tried_s = worker.tried_s(now)
            strikes.strike_process(job, worker, Cause.NEVER_READY, detail=detail, tried_s=tried_s)
            orders.kill(job, worker, Cause.NEVER_READY)
        if worker.stopping_at == math.inf and _is_late(job, worker):
            worker.stopping_at = now + LEAVE_S
        if any(at is not None and now >= at for at in (worker.stopping_at, worker.stop_again_at)):
            orders.stop(job, worker)
    return Plan(min((at for worker in others if (at := worker.stopping_at) is not None), default=None))


def _others(job: JobState, kept: frozenset[int]) -> list[Worker]:
    """Processes that are not live, have to stop, or are not ``kept``, by their :func:`id`."""
    live = Stage.LIVE
    return [
        each
        for each in job.roster.workers.values()
        if each.stage is not live or each.stopping_at is not None or id(each) not in kept
    ]


def _may_start(job: JobState) -> bool:
    """Whether a process may start. Usually all seats have one, or their hosts are not ready yet.

    None starts in a job that has to end, not even while it makes its last checkpoint.
    """
    workers = job.roster.workers
    return job.before_exit.why is None and any(
        _is_free(job, seat) for seats in (job.wanted, job.spares) for seat in seats if seat not in workers
    )


def _is_free(job: JobState, seat: Seat) -> bool:
    agent = job.roster.agents.get(seat.host)
    there = agent is not None and agent.joined and not agent.finishing
    return there and job.fleet.restart_delays.over(seat, job.now) and restore.may_start_on(job, seat.host)


def _startable(job: JobState) -> tuple[Seat, ...]:
    """Wanted seats in which a process may be started.

    A program that does not need a world runs once, and no process starts after the script has ended, or may have.
    """
    workers, wanted = job.roster.workers, job.wanted
    if world_outcome(job).phase is WorldPhase.ENDING or job.clean_exits.until is not None:
        return tuple(seat for seat in wanted if seat in workers)
    if job.world.members or any(worker.stage is not Stage.BOOTING for worker in workers.values()):
        return wanted
    done = job.loopless.done_unjoined
    return tuple(seat for seat in wanted if seat not in done) if done else wanted


def _start(
    job: JobState, agent: Agent, seat: Seat, place: Place, *, neighbours: Mapping[int, int], standby: bool
) -> None:
    """``neighbours``: local rank of each slot of the host that is in use."""
    life = job.roster.next_life(seat)
    host = job.fleet.hosts.get(seat.host) or agent.host
    usable = job.faults.ledger.usable_slots(job.now, host)
    blocked = tuple(slot for slot in range(host.slots) if slot not in usable)
    device_of = slot_of(seat.slot, host.slots)
    job.do(actions.StartProcess(life, place, host.slots, device_of, neighbours, blocked))
    worker = Worker(life, agent.host, Stage.BOOTING, job.now)
    worker.planned, worker.local_rank, worker.stands_for = place.rank, place.local_rank, device_of
    job.roster.add(worker)
    if standby:
        worker.spare = seat in job.spares
        alone = {} if job.standing else {"trains": False}  # the world has lost a member: nothing trains meanwhile
        job.record("standby", host=seat.host, slot=seat.slot, **alone, **({"spare": True} if worker.spare else {}))


def _is_late(job: JobState, worker: Worker) -> bool:
    """Whether others have left the world that a process was told to leave."""
    rendezvous = job.rendezvous
    return bool(rendezvous.waiting) or (rendezvous.formed and worker.life not in rendezvous.members)


class _Seated(NamedTuple):
    """A seat, the rank that it shows at first, and its slot or the one for which it stands."""

    rank: int
    seat: Seat
    slot: int


class _Plan(NamedTuple):
    """``neighbours``: local rank of each slot of the host that is in use."""

    seat: Seat
    place: Place
    neighbours: Mapping[int, int]


def _plans(job: JobState, wanted: tuple[Seat, ...], *, joining: bool) -> list[_Plan]:
    """Each seat that should have a process and has none."""
    slots = {host.name: host.slots for host in job.fleet.hosts}
    return plans(wanted, job.roster.workers, spares=job.spares, joining=joining, slots=slots)


def plans(
    wanted: tuple[Seat, ...],
    workers: Mapping[Seat, Worker],
    *,
    spares: tuple[Seat, ...] = (),
    joining: bool,
    slots: Mapping[str, int] = MappingProxyType({}),
) -> list[_Plan]:
    """Each seat without a process, with the place that its process shows to user code at first.

    A spare may take the place of any member but rank 0, which a holder of the commit has: it shows the last one. In an
    extra seat it has the local rank of the slot for which it stands, so it chooses the same device. ``slots``: by host.
    """
    hosts = {host: number for number, host in enumerate(dict.fromkeys([seat.host for seat in wanted]))}
    with_free = {seat.host for seat in (*wanted, *spares) if seat not in workers}  # usually few of thousands
    by_host: dict[str, list[_Seated]] = {}
    planned = [*enumerate(wanted), *((max(0, len(wanted) - 1), seat) for seat in spares)]
    for rank, seat in [(rank, seat) for rank, seat in planned if seat.host in with_free]:
        slot = slot_of(seat.slot, slots.get(seat.host, 0))
        by_host.setdefault(seat.host, []).append(_Seated(rank, seat, slot))
    found: list[_Plan] = []
    for host, group in by_host.items():
        living: dict[int, int] = {}
        for each in group:
            if each.seat in workers:
                living.setdefault(each.slot, workers[each.seat].local_rank)
        neighbours = local_ranks(dict.fromkeys([each.slot for each in group]), living)
        for at, seat, slot in [each for each in group if each.seat not in workers]:
            # A process that joins others does not see rank 0: the work of rank 0 at the start is done.
            rank = max(1, len(wanted) - 1) if joining and at == 0 else at
            cross = hosts.get(host, max(0, len(hosts) - 1))
            size = max(len(wanted), rank + 1)
            place = Place(rank, size, neighbours[slot], len(neighbours), cross, max(1, len(hosts)))
            found.append(_Plan(seat, place, neighbours))
    return found


# --- newcomers: what was started, and is not in a world yet


STEPS_ALONE: Final = "does steps, alone: before hvd.init(), or outside a function with @elastic.run"
"""With hvd_elastic_ext.torch a newcomer trains in a world of its own from hvd.init() until the loop."""
WAITS_FOR_RECORD: Final = "waits in hvd.init() for what collectives returned to the others before their training loop"
WAITS_FOR_LOOP: Final = "waits in hvd.init(): the world has not begun its training loop (elastic.run)"
STANDBY: Final = "--standby-timeout"


def starting(job: JobState, now: float) -> dict[str, Starting]:
    """By host, the oldest agent or process that was started there and is not in a world yet; as of ``now`` (mono). One
    that waits outside until the job ends only if no other one is.
    """
    if job.outcome.over:
        return {}
    join_s, boot_s = job.roster.join_timeout_s, job.options.standby_timeout_s
    found = {
        name: Starting("its agent", now - agent.since, NOT_CONNECTED, agent.since + join_s - now)
        for name, agent in job.roster.agents.items()
        if not agent.last_message_at
    }
    apart, outside = calls.apart(job), calls.outside(job)
    for seat, worker in job.roster.workers.items():
        if worker.generation or worker.killed is not None or worker.leaving is not None:
            continue
        if worker.stage is Stage.PARKED and is_spare(job, worker) and seat not in apart:
            continue  # it is ready, and waits for nothing
        what, since_s = f"the process in slot {seat.slot}", now - worker.created
        one = Starting(what, since_s, apart.get(seat) or _joins(job))
        if worker.stage is Stage.BOOTING and worker.at_init:
            one = Starting(what, since_s, WAITS_FOR_LOOP if worker.waits_alone_since is None else WAITS_FOR_RECORD)
        elif worker.stage is Stage.BOOTING:
            why = apart.get(seat) or (NOT_READY if worker.step_s is None else STEPS_ALONE)
            one = Starting(what, since_s, why, worker.since + boot_s - now, STANDBY)
        one = one._replace(outside=seat in outside)
        known = found.get(seat.host)
        if known is None or (known.outside, one.since_s) > (one.outside, known.since_s):
            found[seat.host] = one
    return found


def _joins(job: JobState) -> str:
    """What a newcomer that is ready waits for."""
    if not job.world.members:
        return "waits for its world"
    if job.restarting.change is not None:
        return f"joins once world {job.generation} has ended"
    if job.settled:
        return f"joins at a commit of world {job.generation}"
    return f"joins once world {job.generation} trains"


def waits(job: JobState) -> Wait | None:
    """While no world stands: processes that are not ready yet, and with which one could form."""
    workers, will_sleep = job.roster.workers, job.saving.will_sleep
    booting = [worker for worker in workers.values() if worker.stage is Stage.BOOTING and not worker.at_init]
    if not booting or not job.options.limits.size(len(workers), begun=job.world.begun):
        return None
    latest = min(worker.since for worker in booting) + job.options.standby_timeout_s
    alone = [worker.seat for worker in booting if worker.step_s is not None]
    absent = [worker.seat for worker in booting if worker.step_s is None]
    what = [f"processes that are not at hvd.init() or elastic.run yet: {first_few(absent)}"] if absent else []
    if alone:
        where = "before hvd.init() or outside a function with @elastic.run"
        what.append(f"processes that do steps, each alone, {where}: {first_few(alone)}")
    fails_at = shortage.fails_at(job)
    if fails_at is not None and fails_at < latest and not will_sleep:
        return Wait("; ".join(what), fails_at, shortage.FAILS)
    return Wait("; ".join(what), latest, f" ({STANDBY})")
