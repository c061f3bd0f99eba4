"""Processes that send heartbeats but stall, do not come back from a peer's end, or are slower than the others for long.

Heartbeats come from a thread of their own, so they say that a process lives, not that it trains (:mod:`stalls` judges
that). A stall is reported, and the process ended only if the user has asked for that. In synchronous training all wait
for the slowest, so a straggler is found by steps without the wait in collectives.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Final

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING
from hvd_elastic_ext.launcher.driver.roster import GO_LIVE_S
from hvd_elastic_ext.launcher.driver.words import first_few
from hvd_elastic_ext.launcher.health import strikes
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.health.ledger import Subject
from hvd_elastic_ext.launcher.health.pace import without_sign
from hvd_elastic_ext.launcher.health.stalls import (
    Member,
    Stall,
    absence,
    ended_early,
    finished_limit_s,
    left_waiting,
    missing_limit_s,
    stall,
    stall_limit_s,
)
from hvd_elastic_ext.launcher.membership.prologue import in_prologue

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.actions import Plan
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

log = logging.getLogger(__name__)


FACTOR: Final = 1.5
SUSTAINED: Final = 20
"""Steps in a row. A slow batch, a checkpoint or a page fault is over by then; a hot or shared device is not."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """``seconds`` is its own median step, ``median`` that of the median process."""

    seat: Seat
    seconds: float
    median: float

    @property
    def text(self) -> str:
        """One line for the log and the journal: seat, seconds a step, and how many times the median that is."""
        return f"{self.seat} takes {self.seconds:.3g} s a step, {self.seconds / self.median:.2g} × the median"


def stragglers(step_times: Mapping[Seat, Sequence[float]]) -> list[Straggler]:
    """Name the processes whose last ``SUSTAINED`` steps *each* took over ``FACTOR`` times the median, slowest first.

    ``step_times`` holds each process's recent steps, newest last. The median is
    taken over the processes' own medians. With fewer than three processes
    there is no result.
    """
    typical = {seat: median(times[-SUSTAINED:]) for seat, times in step_times.items() if len(times) >= SUSTAINED}
    if len(typical) < 3:
        return []
    usual = median(typical.values())
    found = [
        Straggler(seat, seconds, usual)
        for seat, seconds in typical.items()
        if usual > 0 and all(time > FACTOR * usual for time in step_times[seat][-SUSTAINED:])
    ]
    return sorted(found, key=lambda straggler: -straggler.seconds)


def has_less_work(share: tuple[int, int] | None, size: int) -> bool:
    """Whether a process has less than an equal share of the global batch, among ``size`` of them. It is known to be
    slow then, and has its place: it is not a straggler. ``share``: its samples, and all of them.
    """
    return share is not None and share[0] < share[1] // size


@dataclass(frozen=True, slots=True)
class Watch:
    """Stragglers that were reported or drained already: each is reported once and drained at most once."""

    named: frozenset[Seat] = frozenset()
    drained: frozenset[Seat] = frozenset()

    def look(self, found: Collection[Straggler], *, drain: bool = False) -> tuple[Watch, list[Straggler], list[Seat]]:
        """Return ``(next watch, whom to report, whom to drain)``.

        One that caught up and falls behind again is reported again, but never
        drained twice: if the first drain did not help, another only costs a resize.
        """
        seats = frozenset(straggler.seat for straggler in found)
        report = [straggler for straggler in found if straggler.seat not in self.named]
        leave = [straggler.seat for straggler in found if drain and straggler.seat not in self.drained][:1]
        return replace(self, named=seats, drained=self.drained.union(leave)), report, leave


# --- state


@dataclass(slots=True)
class Liveness:
    """The progress of the processes of the world."""

    looked_at: float
    compared_at: float
    of: int
    """The generation of ``finished``."""
    moved: dict[ProcessId, tuple[int, float]] = field(default_factory=dict)
    """The count of each process, and when it was new (mono)."""
    moved_in: int = 0
    """The generation of the world in which progress was noted last."""
    times: dict[ProcessId, deque[float]] = field(default_factory=dict)
    """The latest step times of each process."""
    watch: Watch = field(default_factory=Watch)
    reported: frozenset[ProcessId] | None = None
    """Processes that were reported to delay the world; None while it makes progress."""
    finished: dict[ProcessId, Member] = field(default_factory=dict)
    """Members of the newest world that are done with training, whether they live or not."""

    def of_world(self, generation: int) -> dict[ProcessId, Member]:
        """:attr:`finished` of this world, which is the newest one."""
        if self.of != generation:
            self.of = generation
            self.finished.clear()
        return self.finished


# --- ranks that end before others


def ended(job: JobState, worker: Worker, *, well: bool) -> None:
    """A process has ended. Others may wait for ever for one that ended ``well``."""
    place = job.rendezvous.place(worker.life)
    if not worker.done:
        job.liveness.of_world(job.generation).pop(worker.life, None)  # it was in its next training call
    if well and place is not None and worker.life in job.world.members:
        job.liveness.of_world(job.generation)[worker.life] = note_finished(job, worker, place.rank)
    if (base := job.outcome.went_on.get(worker.life)) is not None:
        job.outcome.more[worker.seat] = max(0, worker.step - base)


def note_finished(job: JobState, worker: Worker, rank: int) -> Member:
    """The record of a process that is done with training, or has ended with 0.

    Without a State of ours its steps are not those of the script: Horovod does some of its own.
    """
    return Member(worker.life, rank, job.now, done=worker.done, step=0 if worker.every is None else worker.step)


def others_continue(job: JobState, next_members: Container[ProcessId]) -> None:
    """Another world is about to form: log it if members of the last one are done with training."""
    outcome, found = job.outcome, job.liveness.of_world(job.generation)
    if not found and not any(worker.done for worker in job.roster.workers.values()):
        return
    others = []
    for worker in job.roster.present(job.world.members):
        if worker.done and (place := job.rendezvous.place(worker.life)) is not None:
            found.setdefault(worker.life, note_finished(job, worker, place.rank))
        else:
            found.pop(worker.life, None)  # a script may train more than once
        if not worker.done and worker.life in next_members:
            others.append(worker)
    done = sorted((each for each in found.values() if each.done), key=lambda each: each.rank)
    if not done or not others or outcome.failure is not None:
        return
    log.warning("%s", ended_early(done, [worker.seat for worker in others]))
    outcome.early += tuple(done)
    ends_at = max(each.step for each in done)
    for (
        worker
    ) in others:  # a State of ours counts steps from the start of training; without it each process counts its own
        outcome.went_on[worker.life] = ends_at if ends_at and worker.every is not None else worker.step


LOOK_S: Final = 1.0
PAUSE_EACH_S: Final = 0.004
"""What each member adds to :data:`LOOK_S` in a formed world, up to :data:`MAX_PAUSE_S`: thousands take long."""
MAX_PAUSE_S: Final = 20.0
COMPARE_S: Final = 5.0
"""Seconds between two comparisons of step times: thousands take a while."""


def plan(job: JobState) -> Plan:
    """Look for stalled and slow processes, unless another world was called just now."""
    if job.decision.members is None:  # a member that was called just now is not late yet
        _look(job)
    return NOTHING


def _look(job: JobState) -> None:
    now, state = job.now, job.liveness
    pause_s = LOOK_S if not job.formed else max(LOOK_S, min(MAX_PAUSE_S, PAUSE_EACH_S * len(job.world.members)))
    if now - state.looked_at < pause_s:
        return
    state.looked_at = now
    if not job.formed:
        _find_missing(job)
        return
    if _find_left_waiting(job):
        return
    if _find_without_sign(job):
        return
    if not job.settled:  # the state for newcomers may take long to send
        state.moved.clear()
        state.reported = None
        return
    if not _all_hosts_heard(job):
        state.moved.clear()
        return
    if job.options.progress_timeout_s is None and in_prologue(job):
        state.moved.clear()  # one rank may prepare the data while the others wait for it
        return
    still_s, limit = _note_progress(job), job.options.progress_timeout_s
    limit_s = stall_limit_s(job) if limit is None else limit
    found = stall(now, _members(job), limit_s, idle=limit is not None) if still_s >= limit_s else None
    _report_stall(job, found, restart=limit is not None)
    if now - state.compared_at >= COMPARE_S:
        state.compared_at = now
        _find_stragglers(job)


def at_the_end(job: JobState) -> Plan:
    """Once training is over, report only ranks that wait for a finished rank."""
    state = job.liveness
    if job.outcome.finishing and job.outcome.failure is None and job.now - state.looked_at >= LOOK_S:
        state.looked_at = job.now
        _find_left_waiting(job)
    return NOTHING


def _all_hosts_heard(job: JobState) -> bool:
    """Whether every host of the world has sent messages lately: the progress of a silent one is unknown."""
    lately, roster, members = job.now - job.options.heartbeat_timeout_s / 2, job.roster, job.world.members
    agents = map(roster.agents.get, {life.seat.host for life in members})
    return all(agent is not None and agent.last_message_at >= lately for agent in agents)


def _trains(job: JobState) -> list[Worker]:
    """Members that still train."""
    return [each for each in job.roster.present(job.world.members) if each.killed is None and not each.done]


def _note_progress(job: JobState) -> float:
    """Note the progress of each member. Return the longest time without progress, in seconds."""
    now, state, trains = job.now, job.liveness, _trains(job)
    # A world that forms between two looks may have had no heartbeat yet: its members stood still in the last one.
    before, times = state.moved if state.moved_in == job.generation else {}, state.times
    state.moved, state.times, state.moved_in = {}, {}, job.generation
    longest = now
    for worker in trains:
        life, entry = worker.life, before.get(worker.life)
        if entry is None or entry[0] != worker.progress:
            entry = (worker.progress, now)
        elif entry[1] < longest:
            longest = entry[1]
        state.moved[life] = entry
        if worker.step_s is not None:
            recent = state.times[life] = times.get(life) or deque(maxlen=SUSTAINED)
            if not recent or recent[-1] != worker.step_s:
                recent.append(worker.step_s)
    return now - longest


def _members(job: JobState) -> list[Member]:
    """Members that report their progress, as it was noted last."""
    moved, place = job.liveness.moved, job.rendezvous.place
    known = ((worker, place(worker.life)) for worker in _trains(job) if worker.progress or worker.waiting)
    return [Member(each.life, rank.rank, moved[each.life][1], each.waiting) for each, rank in known if rank is not None]


# --- standing still


def _find_left_waiting(job: JobState) -> bool:
    """Whether only some members are done. Reports it if the others only wait for them."""
    now, state = job.now, job.liveness
    state.of_world(job.generation)
    for worker in job.roster.present(job.world.members):
        if worker.done and (place := job.rendezvous.place(worker.life)) is not None:
            state.finished.setdefault(worker.life, note_finished(job, worker, place.rank))
        elif state.finished:
            state.finished.pop(worker.life, None)  # a script may train more than once
    if not state.finished or not _all_hosts_heard(job):
        return False
    _note_progress(job)
    members, finished = _members(job), sorted(state.finished.values(), key=lambda member: member.rank)
    _report_stall(job, left_waiting(now, members, finished, finished_limit_s(job)), restart=False)
    return True


def _find_without_sign(job: JobState) -> bool:
    """With ``--progress-timeout``, report a world in which nobody has begun to train for that time, and whether it is
    one. Nothing is restarted: a script may report no steps.
    """
    limit_s, present = job.options.progress_timeout_s, job.roster.present(job.world.members)
    if limit_s is None or (found := without_sign(job, present)) is None or found.still_s < limit_s:
        return False
    names = first_few(f"{member.rank} on {member.life.seat}" for member in found.unbegun)
    who = "they" if len(found.unbegun) > 1 else "it"
    reason = f"no progress for {found.still_s:.0f} s of rank {names}: {who} {found.lacks}"
    _report_stall(job, Stall(found.unbegun, 0, found.still_s, reason, begun=False), restart=False)
    return True


def _find_missing(job: JobState) -> None:
    """Report members that the next world waits for; kill newcomers that are late."""
    now, state = job.now, job.liveness
    waiting, limit_s = job.rendezvous.waiting, missing_limit_s(job)
    before, state.moved = state.moved, {}
    late = []
    for worker in job.roster.present(job.world.members):
        life = worker.life
        if worker.killed is not None or worker.done or life in waiting:
            continue
        counted, since = before.get(life, (worker.progress, now))
        entry = state.moved[life] = (worker.progress, since if counted == worker.progress else now)
        if now - entry[1] >= limit_s:
            late.append(Member(life, -1, entry[1], worker.waiting))
        if not worker.generation and worker.live_at is not None and now - worker.live_at > GO_LIVE_S:
            detail = f"{worker.seat} was told to go live and did not come"
            strikes.strike_process(job, worker, Cause.NEVER_READY, detail=detail)
            orders.kill(job, worker, Cause.NEVER_READY)
    came = sum(life in waiting for life in job.world.members) if late else 0
    found = absence(now, late, limit_s, waiting=came)
    if found is not None:
        _report_stall(job, found, restart=job.options.progress_timeout_s is not None)


def _report_stall(job: JobState, found: Stall | None, *, restart: bool = True) -> None:
    state = job.liveness
    if found is None:
        if state.reported is not None:
            log.warning("training makes progress again")
        state.reported = None
        return
    lives = frozenset(member.life for member in found.lag)
    if lives == state.reported:
        return
    state.reported = lives
    log.warning("the world is stalled: %s; %s", found.reason, _advice(job, found, restart=restart))
    job.record(
        "stalled",
        ranks=[member.rank for member in found.lag],
        hosts=[str(member.life.seat) for member in found.lag],
        waiting=found.waiting,
        since_s=round(found.since_s, 3),
        finished=[member.rank for member in found.finished],
        reason=found.reason,
    )
    for life in lives if restart and job.options.restart_stalled else ():
        worker = job.roster.alive(life)
        if worker is not None:
            orders.kill(job, worker, Cause.STALLED)


def _advice(job: JobState, found: Stall, *, restart: bool) -> str:
    """What can be done about a stall."""
    if restart and job.options.restart_stalled and found.lag:
        return "ended and started again (--restart-stalled)"
    if found.finished:
        return "what ends this is the end of the script, or Ctrl-C"
    lives = [member.life for member in found.lag] or list(job.world.members)
    worker, rank = job.roster.alive(lives[0]), job.rank(lives[0])
    who = "it" if rank is None else f"rank {rank}"
    pid = "PID" if worker is None or worker.pid is None else worker.pid
    look = f"`py-spy dump --pid {pid}` on {lives[0].seat.host} shows what {who} does"
    if not found.begun:
        return f"{look}; elastic.heartbeat() in long work before the first step counts as progress"
    return f"{look}; --progress-timeout S --restart-stalled restarts such a process"


# --- being slow


def _find_stragglers(job: JobState) -> None:
    state = job.liveness
    slow = stragglers({life.seat: tuple(times) for life, times in state.times.items()})
    size = len(job.world.members)
    found = [each for each in slow if not has_less_work(job.roster.workers[each.seat].share, size)]
    drain = job.options.drain_stragglers and _can_spare_one(job)
    state.watch, report, leave = state.watch.look(found, drain=drain)
    for straggler in found:
        if straggler in report or straggler.seat in leave:
            _report_straggler(job, straggler, drained=straggler.seat in leave)


def _report_straggler(job: JobState, straggler: Straggler, *, drained: bool) -> None:
    seat, worker = straggler.seat, job.roster.workers[straggler.seat]
    place = job.rendezvous.place(worker.life)
    rank = -1 if place is None else place.rank
    job.record(
        "straggler",
        host=seat.host,
        slot=seat.slot,
        rank=rank,
        step_s=straggler.seconds,
        median_s=straggler.median,
        drained=drained,
        reason=straggler.text,
    )
    if drained:
        _drain(job, worker.host, seat.slot, reason=straggler.text)


def _drain(job: JobState, host: Host, slot: int, *, reason: str) -> None:
    """Give a slot no work for the longest cooldown. It is not a strike.

    It is for the pod's whole life, whatever container runs in it: the device stays the same.
    """
    until = job.now + job.options.cooldown_s[1]
    job.faults.ledger = job.faults.ledger.block(
        Subject("slot", host.name, host.uid, slot), until, reason, drained=True, at=job.now
    )
    job.save()


def _can_spare_one(job: JobState) -> bool:
    """Whether the world would lose no more than the straggler if that left."""
    limits = job.options.limits
    there = sum(len(slots) for _, slots in job.faults.usable(job.fleet.hosts, job.now))
    after = limits.size(there - 1, begun=True)
    return after > 0 and after >= limits.size(there, begun=True) - 1
