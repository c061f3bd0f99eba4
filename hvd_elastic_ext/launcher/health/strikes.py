"""Whom a fault counts against, and when faults end the job.

Only faults count, and only against the first cause: victims of a lost peer count for nothing (:mod:`ends`). A strike
blocks a slot, a host or a node for a time that doubles (:mod:`ledger`). The same failure in several starts without a
step between ends the job if it came on two hosts, or if without that slot too few remain; else that slot is blocked and
the others train. If a job that has something to keep has no host left that may work, the block of the one with the
newest commit is lifted at once (:func:`lift_one_block`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from hvd_elastic_ext.core.errors import JobFailed
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.custody.custody import keeps_something
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan
from hvd_elastic_ext.launcher.health.causes import BUDGET_WINDOW_S, SIGKILLED, Cause
from hvd_elastic_ext.launcher.health.ledger import DECAY, HealthLedger, LiftedBlock, Strike, cooldown_s
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.events import HealthChanged
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.health.ledger import BlockStatus
    from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId


STARTS: Final = 3
"""This many starts with the same failure, without a step between, show that it comes again."""
UNREPORTED_S: Final = 600.0
"""Where no process reports steps, one that was in a world for this long counts as one that has done some."""


class Failure(NamedTuple):
    """A process has failed."""

    seat: Seat
    created: float
    """When it was started (mono)."""
    at: float
    """When it failed (mono)."""
    stepped: bool = False
    """It had done a step."""
    alone: bool = False
    """It was not in a world yet, and the others train on: that costs them nothing, and says nothing about their script.
    """


class Verdict(Enum):
    """What follows from a failure that comes again."""

    NOTHING = "nothing"
    """The usual strike."""
    BLOCK = "block"
    """Its slot gets no work for the longest cooldown, and the others train."""
    END = "end"
    """The job ends."""


class Decision(NamedTuple):
    """``starts``: how many starts in a row have failed like this. ``reason``: why the job ends, or the slot is blocked;
    empty for ``NOTHING``.
    """

    verdict: Verdict
    starts: int
    reason: str = ""


def is_counted(cause: Cause, code: int) -> bool:
    """Whether a failure may come again by itself. A SIGKILL comes from outside, if it is not the kernel's for memory;
    what is silent, late or unreachable depends on the load and the network.
    """
    return cause is Cause.MEMORY or (cause is Cause.CRASHED and code not in SIGKILLED)


def decide(failures: Sequence[Failure], *, stepped_at: float, left: int, needed: int) -> Decision:
    """Decide what follows from the last of ``failures``, all of the same kind and exit code, in the order of time.

    ``stepped_at``: when any process of the job did its last step (mono). ``left``: slots without the one that failed.
    ``needed``: how many a world needs.
    """
    last = failures[-1]
    in_a_row = [] if last.alone else [each for each in failures if not each.alone and each.at > stepped_at]
    count = starts(in_a_row)
    if count >= STARTS:
        hosts = list(dict.fromkeys(each.seat.host for each in in_a_row))
        if len(hosts) > 1:
            return Decision(Verdict.END, count, f"it came on {len(hosts)} hosts: {', '.join(hosts)}")
        if left < needed:
            return Decision(Verdict.END, count, f"slots left without {last.seat}: {left}, needed: {needed}")
        return Decision(Verdict.BLOCK, count, "the others go on without it")
    here = starts(_since_last_step(each for each in failures if each.seat == last.seat and not each.alone))
    if here >= STARTS and not last.alone and left >= needed:
        return Decision(Verdict.BLOCK, here, "the others go on without it")
    return Decision(Verdict.NOTHING, max(count, here))


def _since_last_step(failures: Iterable[Failure]) -> list[Failure]:
    found: list[Failure] = []
    for each in failures:
        found = [] if each.stepped else [*found, each]
    return found


def starts(failures: Iterable[Failure]) -> int:
    """The number of starts: processes that were started before another one of them had failed belong to one."""
    count, since = 0, float("-inf")
    for each in failures:
        if each.created >= since:
            count, since = count + 1, each.at
    return count


# --- how long to wait before another start


@dataclass(slots=True)
class RestartDelays:
    """Delays by seat, as long as cooldowns. They are not faults, so they are not in the ledger. Times are mono."""

    _of: dict[Seat, tuple[int, float]] = field(default_factory=dict)
    """By seat: exits in a row, and when the next process may start."""

    def over(self, seat: Seat, now: float) -> bool:
        """Whether a process may start there."""
        return now >= self._of.get(seat, (0, now))[1]

    def begin(self, seat: Seat, now: float, limits: tuple[float, float]) -> None:
        """A process has left. ``limits``: shortest and longest delay, in seconds."""
        times, until = self._of.get(seat, (0, now))
        # As with strikes, a long run without an exit clears the count.
        times = 1 if not times or now - until > DECAY * cooldown_s(times, limits) else times + 1
        self._of[seat] = (times, now + cooldown_s(times, limits))

    def forget(self, host: str) -> None:
        """Another host has this name now."""
        self._of = {seat: rest for seat, rest in self._of.items() if seat.host != host}


# --- state


class _Usable(NamedTuple):
    """The slots of each host that may work, by a ledger, until then (mono)."""

    hosts: HostSet
    ledger: HealthLedger
    until: float
    slots: list[tuple[Host, tuple[int, ...]]]


class Unexplained(NamedTuple):
    """A member of a world has ended as if a peer was lost, and no other is known to be. ``until``: when that is its own
    fault (mono), unless another one's end comes. ``members``: of its world; ``generation``: that world.
    """

    worker: Worker
    how: str
    code: int
    members: tuple[ProcessId, ...]
    generation: int
    until: float


@dataclass(slots=True)
class Faults:
    """Strikes and blocks, and how often something failed."""

    ledger: HealthLedger
    first: str | None = None
    """The first process that failed, and how."""
    counted: list[tuple[float, str]] = field(default_factory=list)
    """Faults that count towards ``--failure-budget``: when (mono), and on which host."""
    all_left_at: list[float] = field(default_factory=list)
    """When the last process of a world left without an order (mono)."""
    seen: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By digest of an error, the host and the step where it came last."""
    repeats: dict[tuple[str, int, str], list[Failure]] = field(default_factory=dict)
    """Failures by cause, exit code, and digest of the error if one was reported."""
    stepped_at: float = -math.inf
    """When a step was reported last by a process that has ended (mono)."""
    blocked: set[Seat] = field(default_factory=set)
    """Slots that were blocked because they fail in the same way at each start."""
    to_retry: set[Seat] = field(default_factory=set)
    """Slots in which a process failed before the first world; they may be tried again at once if others get ready."""
    retries: int = 0
    """Starts at once, without a cooldown, since the last step."""
    retried_at: float = -math.inf
    """When the last one of them was (mono)."""
    unexplained: list[Unexplained] = field(default_factory=list)
    _usable: _Usable | None = field(default=None, compare=False, repr=False)

    def usable(self, hosts: HostSet, now: float) -> list[tuple[Host, tuple[int, ...]]]:
        """Each host's slots that may work at ``now`` (mono)."""
        known, ledger = self._usable, self.ledger
        if known is None or known.hosts is not hosts or known.ledger is not ledger or now >= known.until:
            until = ledger.next_release(now)
            known = _Usable(hosts, ledger, math.inf if until is None else until, ledger.usable(now, hosts))
            self._usable = known
        return known.slots


# --- what follows from the state


def blocked(job: JobState, *, brief: bool = False, for_good: bool = True) -> list[str]:
    """Published hosts, and slots of others, that are blocked: since when, until when, and why.

    ``brief``: for lines of the log, without what was printed when the host was blocked: that time, and messages of
    ssh. ``for_good``: include those that are blocked until a user clears them.
    """
    now, found = job.now, []
    short = {host: usable for host, usable in job.faults.usable(job.fleet.hosts, now) if len(usable) < host.slots}
    for host, about in job.faults.ledger.by_host(short):
        ledger, usable = about or HealthLedger(), short[host]
        records = [ledger.records[subject] for subject in ledger.subjects(host)] if brief else []
        words = [(record.why, str(record.cause)) for record in records if record.cause is Cause.UNREACHABLE]
        slots: Sequence[int | None] = sorted(set(range(host.slots)).difference(usable)) if usable else [None]
        for slot in slots:
            status = ledger.blocked(now, host, slot)
            if for_good or status.until is not None:
                name = host.name if slot is None else str(Seat(host.name, slot))
                found.append(_blocked(name, status, words, now, brief=brief))
    return found


def blocked_spares(job: JobState, *, brief: bool = False) -> list[str]:
    """Extra seats that are blocked after the failure of a spare, of hosts that are not: as in :func:`blocked`."""
    if not job.options.spares.asked_for:
        return []
    now, found = job.now, []
    for host, about in job.faults.ledger.by_host(job.fleet.hosts):
        if about is None or about.blocked(now, host).blocked:
            continue
        extra = (subject.slot for subject in about.subjects(host) if (subject.slot or 0) >= host.slots)
        for slot in sorted(slot for slot in extra if slot is not None):
            if (status := about.blocked(now, host, slot)).blocked:
                found.append(_blocked(f"spare {Seat(host.name, slot)}", status, (), now, brief=brief))
    return found


def unreached(job: JobState, host: Host) -> str | None:
    """Why a host could not be reached at the last try; None if its agent has connected, or there was no try."""
    agent, ledger = job.roster.agents.get(host.name), job.faults.ledger
    if agent is not None and agent.last_message_at:
        return None
    records = map(ledger.records.__getitem__, ledger.subjects(host))
    found = (each.why for each in records if each.cause is Cause.UNREACHABLE and each.strikes_left(job.now))
    return next(found, None)


def not_waited_for(job: JobState) -> list[str]:
    """Hosts and slots without which ``--min-np`` lets a job start, and why; none if it starts on all."""
    first = job.fleet.first_limits
    if job.world.begun or first is None or not first.least < first.start or job.options.limits.start == first.start:
        return []
    usable = job.faults.usable(job.fleet.hosts, job.now)
    tried = [f"{host.name} (unreachable, tried again)" for host, slots in usable if slots and unreached(job, host)]
    return [*blocked(job, brief=True), *tried]


def _blocked(name: str, status: BlockStatus, words: Sequence[tuple[str, str]], now: float, *, brief: bool) -> str:
    until, why = status.until, status.reason
    for text, short in words:
        why = why.replace(text, short)
    ends = "until it is cleared" if until is None else f"for {until - now:.0f} s more"
    since = "" if brief or status.since is None else f"{now - status.since:.0f} s ago, "
    return f"{name} ({since}{ends}: {why.removeprefix(f'host {name}: ')})"


# --- what happens


_MOST_FAILURES = 64
"""Most failures of one kind that are remembered, and most kinds."""


def failed(
    job: JobState, worker: Worker, cause: Cause, how: str, *, code: int, members: tuple[ProcessId, ...]
) -> JobFailed | None:
    """Note that a process has failed by itself; why that ends the job, if it does.

    While others train on, one host alone neither ends the job nor uses up ``--failure-budget``: it only cools down.
    Failures of newcomers before they are in a world cost nothing, and do not count.
    """
    state = job.faults
    state.first = state.first or f"{named(job, worker)} {external_text(with_error(worker, how))}"
    well = _others_healthy(job, worker, members)
    newcomer = well and bool(members) and worker.life not in members
    if worker.failure is not None and not newcomer and _is_script_error(job, worker, members, well=well):
        _, error, traceback = worker.failure
        how_often = " again and again" if well and members else ""
        who = named(job, worker)
        return JobFailed(f"the training script fails{how_often}: {error} ({who})\n{traceback}".rstrip())
    alone = newcomer and (job.standing or _can_do_without(job, worker))
    found = _comes_again(job, worker, cause, code, alone=alone)
    words = external_text(with_error(worker, how))
    if found.verdict is Verdict.END:
        why = f"{named(job, worker)} {words}, in {found.starts} starts without a step between; {found.reason}"
        return JobFailed(f"{why}; {_output(job, worker)}")
    blocks = found.verdict is Verdict.BLOCK
    if blocks:
        words = external_text(f"{words}, in {found.starts} starts without a step")
        state.blocked.add(worker.seat)
    again = not (alone or blocks) and is_counted(cause, code) and _may_retry(job, worker)
    if again and not job.world.begun:  # whether the script fails everywhere is not known yet
        state.to_retry.add(worker.seat)
    waive = again and job.world.begun
    tried_s = worker.tried_s(job.now)
    strike_process(job, worker, cause, detail=words, tried_s=tried_s, longest=blocks, waive=waive)
    if newcomer or not _count(job, worker.seat.host, well=well):
        return None
    count = f"{len(state.counted)} processes failed within an hour, more than --failure-budget allows"
    last = f"the last one was {named(job, worker)}: {with_error(worker, how)}; {_output(job, worker)}"
    return JobFailed(f"{count}; the first one was {state.first}; {last}")


def named(job: JobState, worker: Worker) -> str:
    """The rank of a process and where it runs."""
    return f"rank {_rank(job, worker)} on {worker.seat}"


def _rank(job: JobState, worker: Worker) -> int:
    """Its newest rank; the planned one before its first world."""
    place = job.rendezvous.place(worker.life)
    return place.rank if place is not None else worker.planned if worker.rank is None else worker.rank


def _output(job: JobState, worker: Worker) -> str:
    """Where the output of a process is."""
    who = _rank(job, worker)
    if job.options.output is not None:
        return f"its output is in {job.options.output}/rank.{who}"
    return f"its output, if any, is in the lines that begin with [{who}]"


def _comes_again(job: JobState, worker: Worker, cause: Cause, code: int, *, alone: bool) -> Decision:
    """What follows if a process has failed like others before, without a step between."""
    state, now = job.faults, job.now
    if not is_counted(cause, code):
        return Decision(Verdict.NOTHING, 0)
    unreported = not job.resize.steps_are_reported and now - worker.since >= UNREPORTED_S
    stepped = worker.step_came > 0.0 or (worker.generation > 0 and unreported)
    if stepped:
        state.stepped_at = max(state.stepped_at, now if not worker.step_came else worker.step_came)
    key = (str(cause), code, "" if worker.failure is None else worker.failure[0])
    failures = state.repeats.setdefault(key, [])
    failures.append(Failure(worker.seat, worker.created, now, stepped=stepped, alone=alone))
    del failures[:-_MOST_FAILURES]
    while len(state.repeats) > _MOST_FAILURES:
        del state.repeats[next(iter(state.repeats))]
    if starts(failures) < STARTS:  # usually: the rest asks thousands of processes
        return Decision(Verdict.NOTHING, 0)
    left, needed = _left_without(job, worker)
    return decide(failures, stepped_at=_stepped_at(job), left=left, needed=needed)


def _stepped_at(job: JobState) -> float:
    """When any process of the job did its last step (mono)."""
    alive = [worker.step_came for worker in job.roster.workers.values()]
    return max([job.faults.stepped_at, *(at for at in alive if at > 0.0)])


def _can_do_without(job: JobState, worker: Worker) -> bool:
    """Whether a world can form without the slot of a process."""
    left, needed = _left_without(job, worker)
    return left >= needed


def _left_without(job: JobState, worker: Worker) -> tuple[int, int]:
    """Slots that may work without that of a process, and how many a world needs. Cooldowns end, so slots in one count,
    except for those that fail in the same way at each start.
    """
    now, ledger, limits = job.now, job.faults.ledger, job.options.limits
    needed = limits.least if job.world.begun else limits.start
    left = 0
    for host, about in ledger.by_host(job.fleet.hosts):
        out = {seat.slot for seat in job.faults.blocked | {worker.seat} if seat.host == host.name}
        out = {slot for slot in out if slot == worker.seat.slot or (about and about.blocked(now, host, slot).blocked)}
        held = about is not None and any(each.held_back(now) for each in about.records.values())
        if about is not None and held:
            by_hand = HealthLedger({key: each for key, each in about.records.items() if each.held_back(now)})
            out |= set(range(host.slots)) - set(by_hand.usable_slots(now, host))
        left += sum(slot not in out for slot in range(host.slots))
    size = limits.size(left, begun=job.world.begun)
    return (left if size else min(left, needed - 1)), needed


def _may_retry(job: JobState, worker: Worker) -> bool:
    """Whether a process that failed before any step may start again without a cooldown: only a few times."""
    state = job.faults
    if worker.step_came > 0.0 or job.standing:
        return False
    if state.retries and _stepped_at(job) > state.retried_at:
        state.retries = 0
    return state.retries < STARTS - 1


def with_error(worker: Worker, how: str) -> str:
    """How a process ended, and the error that its script raised, if that is known to be why."""
    return how if worker.failure is None or worker.killed is not None else f"{how}: {worker.failure[1]}"


def process_left(job: JobState, worker: Worker, how: str, *, members: tuple[ProcessId, ...]) -> JobFailed | None:
    """Note that a process left without an order. Return why that ends the job, or None.

    One process may leave at any time. The job ends when all have left too often.
    """
    if worker.life not in members or job.roster.present(members):
        return None
    return all_left(job, f"{worker.seat}: {how}")


def all_left(job: JobState, last: str) -> JobFailed | None:
    """Note that all processes of a world have left without an order. ``last``: the last of them, and how it ended."""
    state, now = job.faults, job.now
    state.all_left_at = [at for at in state.all_left_at if now - at < BUDGET_WINDOW_S] + [now]
    if len(state.all_left_at) <= job.options.failure_budget:
        return None
    times = f"all processes have left {len(state.all_left_at)} times within an hour, more than --failure-budget allows"
    return JobFailed(f"{times}; the last one was {last}. Training is done when the training function returns")


def _count(job: JobState, host: str, *, well: bool) -> bool:
    """Count a fault; whether there are too many now."""
    state = job.faults
    now, budget = job.now, job.options.failure_budget
    state.counted = [(at, name) for at, name in state.counted if now - at < BUDGET_WINDOW_S]
    its_share = budget // 2 + 1
    if well and sum(name == host for _, name in state.counted) >= its_share:
        return False
    state.counted.append((now, host))
    return len(state.counted) > budget


def _others_healthy(job: JobState, worker: Worker, members: tuple[ProcessId, ...]) -> bool:
    """Whether another member lives that has not reported the same error; before the first world, another process."""
    digest = worker.failure and worker.failure[0]
    present = job.roster.present(members) if members else job.roster.workers.values()
    others = [each for each in present if each is not worker]
    return any(each.killed is None and not (each.failure and each.failure[0] == digest) for each in others)


def _is_script_error(job: JobState, worker: Worker, members: tuple[ProcessId, ...], *, well: bool) -> bool:
    """Whether the same error has ended every member of the world, or has come back without a step in between.

    While others are healthy it has to come back on another host. Before any training it may be a device of its slot:
    see :func:`decide`.
    """
    assert worker.failure is not None
    digest, host = worker.failure[0], worker.seat.host
    seen, job.faults.seen[digest] = job.faults.seen.get(digest), (host, worker.step)
    early = worker.life in members and not job.loopless.has_trained
    if not well and (len(members) > 1 or early) and _all_ended_with(job, digest, members):
        return True
    return seen is not None and worker.step <= seen[1] and (seen[0] != host or not (well or early))


def _all_ended_with(job: JobState, digest: str, members: tuple[ProcessId, ...]) -> bool:
    """Whether no member that has ended had another cause than this error, or than a lost peer."""
    ended = job.loopless.ends_of(job.generation) if members else []
    return all(each.error == digest for each in ended)


# --- strikes and blocks


def changed_by_hand(job: JobState, event: HealthChanged) -> None:
    """A user has blocked a host, or has cleared it."""
    job.faults.ledger = event.ledger
    job.record(event.event, **event.fields)
    job.save()


def strike_process(
    job: JobState,
    worker: Worker,
    cause: Cause,
    *,
    detail: str,
    tried_s: float = 0.0,
    longest: bool = False,
    waive: bool = False,
) -> None:
    """Count a strike against the seat of a process. A spare's failure says nothing about those that train beside it.

    Arguments as in :func:`strike`.
    """
    apart = _is_beside(job, worker)
    seat = worker.seat
    strike(
        job, cause, worker.host, seat.slot, detail=detail, tried_s=tried_s, longest=longest, waive=waive, apart=apart
    )


def _is_beside(job: JobState, worker: Worker) -> bool:
    """Whether a process is in an extra seat, or is a spare that was in no world, on a host that trains."""
    host, members = job.fleet.hosts.get(worker.seat.host) or worker.host, job.world.members
    if worker.seat.slot >= host.slots:
        return True
    idle = worker.spare and not worker.generation and worker.life not in members
    return idle and any(life.seat.host == worker.seat.host for life in members)


def strike(
    job: JobState,
    cause: Cause,
    host: Host,
    slot: int | None = None,
    *,
    detail: str,
    tried_s: float = 0.0,
    longest: bool = False,
    waive: bool = False,
    apart: bool = False,
) -> None:
    """Count a strike against a slot or a host, if the cause has one.

    ``detail``: the text of the report. ``tried_s``: seconds of the attempt, without any work done. ``longest``,
    ``apart``: as in :class:`Strike`. ``waive``: it gets no cooldown if no world can form without it.
    """
    now, before, detail = job.now, job.faults.ledger, external_text(detail)
    new = Strike.of(cause, host, slot, at=now, unproven_s=tried_s, detail=detail, longest=longest, apart=apart)
    after = before if new is None else before.struck(now, new, job.options.cooldown_s)
    if new is None or after is before:
        return
    job.faults.ledger = after
    again = waived(job, host, slot) if waive else None
    if again is None and keeps_something(job):
        # Without a commit, the loss of all processes may end the job: the next look decides that first.
        again = lift_one_block(job)
    known, last = before.records.get(new.subject), after.records.get(new.subject)
    same = known is not None and known.strikes > 0 and (known.cause, known.detail) == (cause, detail)
    ledger = job.faults.ledger
    until, whole = ledger.blocked(now, host, slot).until, ledger.blocked(now, host)
    job.record(
        "struck",
        subject=str(new.subject),
        cause=str(cause),
        cooldown_s=None if until is None else round(until - now, 3),
        until=until,
        host=host.name,
        reason=detail,
        host_blocked=whole.reason if whole.blocked else None,
        host_blocked_s=None if whole.until is None else round(whole.until - now, 3),
        **({"waived": again.reason} if again is not None and again.host == host else {}),
        **({"again": last.strikes} if same and last is not None else {}),
    )
    job.save()
    if again is not None and again.host != host:
        note_lifted(job, again)


def waived(job: JobState, host: Host, slot: int | None) -> LiftedBlock | None:
    """End the cooldown of a slot if no world can form without it; None if one can."""
    state, now = job.faults, job.now
    usable = sum([len(slots) for _, slots in state.usable(job.fleet.hosts, now)])
    if job.options.limits.size(usable, begun=job.world.begun):
        return None
    for subject in state.ledger.subjects(host):
        if subject.concerns(host, slot) and state.ledger.records[subject].in_cooldown(now):
            state.ledger = state.ledger.lifted(subject)
    state.retries, state.retried_at = state.retries + 1, now
    return LiftedBlock(state.ledger, host, "no world can form without it, and no step is lost by another start")


def lift_one_block(job: JobState) -> LiftedBlock | None:
    """End the block of one host if no host may work and no process runs; else None.

    Not before training has begun, and never a block by hand. The holder of the newest commit comes first.
    """
    hosts, now, state = job.fleet.hosts, job.now, job.faults
    works = any(worker.killed is None for worker in job.roster.workers.values())
    if not hosts or not job.world.begun or works or any(slots for _, slots in state.usable(hosts, now)):
        return None
    found = state.ledger.lift_one_block(now, [(host, job.roster.commits.of_host(host.name)) for host in hosts])
    state.ledger = found.ledger
    return None if found.host is None else found


def note_lifted(job: JobState, found: LiftedBlock) -> None:
    """Record that a block was ended."""
    assert found.host is not None
    job.record("cleared", host=found.host.name, reason=found.reason, waived=True)
    job.save()


# --- planner


def plan(job: JobState) -> Plan:
    """Look again when the next cooldown is over."""
    return Plan(job.faults.ledger.next_release(job.now))


def retry(job: JobState) -> Plan:
    """Before the first world, end the cooldowns of slots without which it cannot form, once a process is ready.

    Until then the script may fail everywhere, and another start would only delay the message.
    """
    state = job.faults
    if state.to_retry and job.world.begun:
        state.to_retry.clear()
    if not state.to_retry or all(worker.stage is Stage.BOOTING for worker in job.roster.workers.values()):
        return NOTHING
    for seat in sorted(state.to_retry):
        host = job.fleet.hosts.get(seat.host)
        blocked = host is not None and state.ledger.blocked(job.now, host, seat.slot).blocked
        if host is not None and blocked and (found := waived(job, host, seat.slot)) is not None:
            note_lifted(job, found)
    state.to_retry.clear()
    return NOTHING
