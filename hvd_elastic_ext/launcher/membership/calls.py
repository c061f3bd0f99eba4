"""Which processes may share a world, by the training calls that they are in.

A *training call* is one call of a training function; a process's calls have the numbers 1, 2, 3 and so on. Only
processes in the same call share a world: the *front*, the newest call that the job has come to. A process behind it
catches up: it passes over the calls whose results are in its slot's *past*, and stops at the first one without. A slot
that lacks a result gets the past of another one. A process that has trained, and is behind, is started again for that.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hvd_elastic_ext.core.call_results import UNEQUAL, result_of
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.driver.actions import NOTHING, Plan, Record
from hvd_elastic_ext.launcher.driver.helpers import TRANSFER_S, Purpose
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership.rendezvous import Seat, seat_of
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.helpers import HelperAnswer
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Agent, Worker

log = logging.getLogger(__name__)


UNKNOWN = -1
"""The call of a process that cannot read its slot's past: it may join any world, and the others send it their results
when the ranks meet."""
NONE_YET = 0
"""The call of a process that has begun none, and cannot be met later, as in an unmodified script: it joins in
``hvd.init()``, and would begin with call 1."""


class InCall(NamedTuple):
    """A living process. ``call``: the one that it is in, as far as is known, or :data:`UNKNOWN`, or :data:`NONE_YET`.

    ``has_state``: it has a trained state. ``done``: its training function has returned.
    """

    seat: Seat
    stage: Stage
    call: int
    has_state: bool = False
    done: bool = False


class Act(Enum):
    """What a process does next."""

    JOINS = "joins"
    """It is in the front: it is a member, or may become one."""
    CATCHES_UP = "catches up"
    """It goes on when the results of :attr:`Standing.source` are in its slot; they are there if that is its own."""
    BEHIND = "behind"
    """It is in a world, and behind. It ends its call, or rolls back and asks for a rank: then :func:`behind` tells."""
    WAITS = "waits"
    """It stays outside."""


class Standing(NamedTuple):
    """``why``: of a process that waits. ``for_good``: it waits until the job ends, or all others have ended."""

    act: Act
    source: Seat | None = None
    why: str = ""
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Gate:
    """``standings``: of all processes except those that start, and have or need no results."""

    front: int
    standings: Mapping[Seat, Standing] = field(default_factory=dict)

    def act(self, seat: Seat) -> Act | None:
        """What the process in a seat does; None if there is nothing to say about it."""
        found = self.standings.get(seat)
        return None if found is None else found.act

    def stage(self, seat: Seat, stage: Stage) -> Stage | None:
        """The stage of a process, as the next world sees it; None if that does not wait for this process."""
        match self.act(seat) if stage is Stage.PARKED else None:
            case Act.CATCHES_UP:
                return Stage.BOOTING
            case Act.WAITS:
                return None
        return stage


def decide(
    processes: Sequence[InCall],
    pasts: Mapping[Seat, int],
    refused: Mapping[int, str],
    *,
    standing: bool,
    stale: Set[Seat] = frozenset(),
    busy: Set[str] = frozenset(),
) -> Gate:
    """Decide. ``pasts``: by seat that can be reached, the number of results in its memory. ``refused``: calls whose
    result was not kept, and why. ``standing``: a world trains, or forms, with all of its members.
    ``stale``: seats whose result of call 0 is of an earlier start of the job. A process that starts there gets that of
    another one. ``busy``: hosts that can send nothing now.
    """

    def rank(seat: Seat) -> tuple[int, bool, bool, Seat]:
        return pasts[seat], seat not in stale, seat.host not in busy, seat

    best = max(pasts, key=rank, default=None)
    newest = max(pasts.keys() - stale, key=rank, default=None) if stale else None
    most = 0 if best is None else pasts[best]
    front = _front(processes, most)
    late = min((each for each in processes if _is_late(each, front)), key=lambda each: each.call, default=None)
    found: dict[Seat, Standing] = {}
    for process in processes:
        seat, stage, call = process.seat, process.stage, process.call
        own = pasts.get(seat, 0)
        if stage is Stage.BOOTING:  # also before its first call
            if best is not None and own < most and own < front:
                found[seat] = Standing(Act.CATCHES_UP, best)
            elif newest is not None and seat in stale:
                found[seat] = Standing(Act.CATCHES_UP, newest)
        elif call == UNKNOWN:
            found[seat] = Standing(Act.JOINS)
        elif call == NONE_YET:
            barred = stage is Stage.PARKED and bool(_lost(1, front, most, refused))
            found[seat] = _waits(front - 1, most, refused) if barred else Standing(Act.JOINS)
        elif stage is Stage.LIVE:
            found[seat] = Standing(Act.JOINS if call >= front else Act.BEHIND)
        elif call >= front:
            waits = late is not None and standing
            why = "" if late is None or not waits else f"{late.seat} is still in call {late.call}"
            found[seat] = Standing(Act.WAITS if waits else Act.JOINS, why=why)
        elif own > call:
            found[seat] = Standing(Act.CATCHES_UP, seat)
        elif best is not None and most > call:
            found[seat] = Standing(Act.CATCHES_UP, best)
        else:
            found[seat] = _waits(call, most, refused)
    return Gate(front, found)


def behind(
    processes: Iterable[InCall], waiting: Container[Seat], refused: Mapping[int, str] = MappingProxyType({})
) -> dict[Seat, str]:
    """Live processes that cannot be in the next world, since they have rolled back in a call that others have ended;
    and why, each.

    ``waiting``: those that have asked for a rank. Only they are judged: their agents pass on all that they have said
    before they ask. Of any other, a message with a later call may be on its way. ``refused`` as in :func:`decide`: one
    that has begun no call is left out if it cannot skip those that are over.
    """
    live = [each for each in processes if each.stage is Stage.LIVE and each.call != UNKNOWN]
    front = max((each.call for each in live if each.has_state or each.seat in waiting), default=UNKNOWN)
    barred = bool(_lost(1, front, 0, refused))
    late = [each for each in live if each.call < front and each.seat in waiting]
    late = [each for each in late if each.call > NONE_YET or barred]
    return {each.seat: f"{each.seat} is still in call {max(1, each.call)}, others are in call {front}" for each in late}


def _front(processes: Sequence[InCall], most: int) -> int:
    """The newest call that the job has come to."""
    known = [each for each in processes if each.call > NONE_YET]
    trained = max((each.call for each in known if each.has_state and each.stage is Stage.LIVE), default=0)
    parked = max((each.call for each in known if each.stage is Stage.PARKED), default=0)
    reached = most if not trained and any(each.stage is not Stage.LIVE for each in known) else 0
    return max(1, trained, parked, reached)


def _is_late(process: InCall, front: int) -> bool:
    return process.stage is Stage.LIVE and NONE_YET < process.call < front and not process.done


def _waits(call: int, most: int, refused: Mapping[int, str]) -> Standing:
    """A process whose call is over, and nobody who can be reached has its result."""
    if lost := _lost(most, call + 1, most, refused):
        return Standing(Act.WAITS, why=f"{result_of(lost[0])} was not kept: {refused[lost[0]]}", for_good=True)
    return Standing(Act.WAITS, why=f"no result of call {call} can be reached")


def _lost(first: int, end: int, most: int, refused: Mapping[int, str]) -> list[int]:
    """The calls from ``first`` to the one before ``end`` whose result nobody can have."""
    return [number for number in sorted(refused) if max(first, most) <= number < end]


# --- state


MOST_KNOWN: Final = 1 << 31
"""No call has a larger number: a message that names one is wrong."""


@dataclass(slots=True)
class PastTransfer:
    """A past that is sent to another slot."""

    target: Seat
    source: Seat
    results: int
    """How many results are sent at least."""
    token: str
    began: float
    """When it began (mono)."""
    first: bool = False
    """A commit waits for it."""
    record: int | None = None
    """:attr:`Calls.record_world` at its beginning, if the source has that record; else None."""
    asked: set[str] = field(default_factory=set)
    """The hosts whose helpers were started for it."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that take part."""
        return (self.source.host, self.target.host)


@dataclass(slots=True)
class Calls:
    """Facts about calls. In a job with one call, which nearly all are, they stay as they begin."""

    newest: int = 1
    """The largest number of a call, or of results, that was ever reported. While it is 1, nothing is decided, unless
    there are :attr:`collectives`."""
    collectives: bool = False
    """Whether the result of call 0 has, or will have, what collectives returned before the first training call."""
    pasts: dict[Seat, int] = field(default_factory=dict)
    """By seat, the number of results in its memory, by its agent or process."""
    refused: dict[int, str] = field(default_factory=dict)
    """Calls whose result was not kept, and why."""
    record_due: bool = False
    """Whether processes have begun the first call after such collectives, and not kept yet what these returned."""
    recorded: set[Seat] | None = None
    """Seats whose result of call 0 is of the newest start of the job, as far as is known: a slot that was away then has
    that of an earlier one. None: no process has reported any yet, and all are taken for that."""
    record_world: int = 0
    """The generation of the world whose processes have kept it."""
    told: dict[int, bool] = field(default_factory=dict)
    """Calls whose end is in the journal, and whether the result was kept."""
    transfer: PastTransfer | None = None
    not_before: float = 0.0
    """No transfer before then (mono): the last one has failed."""

    @property
    def sending(self) -> Seat | None:
        """The seat whose results are being sent, and then its commit."""
        return None if self.transfer is None or not self.transfer.first else self.transfer.source

    def go_first(self, source: Seat, target: Seat) -> bool:
        """Whether a slot lacks results that belong to the commit of another one: without them, its process could not
        come to the training call of that commit.
        """
        return self.pasts.get(source, 0) > max(1, self.pasts.get(target, 0))

    def has_record(self, seat: Seat) -> bool:
        """Whether a slot holds what collectives returned at the newest start of the job."""
        return self.pasts.get(seat, 0) > 0 and not self.record_due and not self.is_stale(seat)

    def is_stale(self, seat: Seat) -> bool:
        """Whether the result of call 0 in a slot, if it has any, may be of an earlier start."""
        return self.recorded is not None and seat not in self.recorded

    def recorded_in(self, seats: Iterable[Seat], generation: int) -> bool:
        """Slots have what collectives have returned to the members of a world. Return whether that is new."""
        before = self.recorded if generation == self.record_world else None
        self.recorded, self.record_world = {*(before or ()), *seats}, generation
        return self.recorded != before

    def named(self, call: int) -> None:
        """A process has named a call."""
        self.newest = max(self.newest, call)

    def holds(self, seat: Seat, results: int) -> None:
        """A slot holds this many results. Those from one on that ranks have refused, since it differs, do not count."""
        results = min([results, *(call for call, why in self.refused.items() if why == UNEQUAL)])
        if results > 0:
            self.pasts[seat] = results
            self.newest = max(self.newest, results)
        else:
            self.pasts.pop(seat, None)
            if self.recorded is not None:
                self.recorded.discard(seat)

    def agent_joined(self, host: str, found: Collection[tuple[Seat, int]]) -> None:
        """An agent has joined, and reports the results in its slots."""
        for seat in [seat for seat in self.pasts if seat.host == host]:
            del self.pasts[seat]
        if self.recorded is not None:
            here = {seat for seat, results in found if results}
            self.recorded -= {seat for seat in self.recorded if seat.host == host and seat not in here}
        for seat, results in found:
            self.holds(seat, results)


def call_number(value: object) -> int | None:
    """The number of a call, or of results, in a message; None for anything else."""
    return value if type(value) is int and 0 <= value < MOST_KNOWN else None


# --- what follows from the state


def gate_of(job: JobState) -> Gate | None:
    """Who may join a world by the training calls that processes are in. None if all are in the first one, or if
    none is outside the world: nearly always.
    """
    if not (job.calls.newest > 1 or job.calls.collectives) or not job.in_place:
        return None
    roster = job.roster
    if not any(each.stage is not Stage.LIVE and each.killed is None for each in roster.workers.values()):
        return None
    pasts = {seat: each for seat, each in job.calls.pasts.items() if job.is_connected(seat.host)}
    stale = frozenset(filter(job.calls.is_stale, pasts))
    return decide(in_calls(job), pasts, job.calls.refused, standing=job.standing, stale=stale, busy=job.helping)


def in_calls(job: JobState) -> list[InCall]:
    """The training calls that processes are in: not those that are ending."""
    return [
        InCall(seat, each.stage, UNKNOWN if each.blind else each.call, each.has_state, each.done)
        for seat, each in job.roster.workers.items()
        if each.killed is None and (each.leaving is None or each.stage is Stage.LIVE)
    ]


def between_calls(job: JobState) -> frozenset[Seat]:
    """Seats whose processes are done with a call, while others are in a later one already: they are on their way."""
    if job.calls.newest == 1:
        return frozenset()
    living = [(seat, each) for seat, each in job.roster.workers.items() if each.killed is None]
    front = max((each.call for _, each in living if each.loops), default=NONE_YET)
    return frozenset(seat for seat, each in living if each.done and each.call < front)


# --- what lines say about it


BEFORE: Final = "gets what collectives returned before the training function"


def apart(job: JobState) -> dict[Seat, str]:
    """By seat, what a process does that is not in the call of the others. Usually empty, and cheap then."""
    if (gate := gate_of(job)) is None:
        return {}
    found: dict[Seat, str] = {}
    for seat, standing in gate.standings.items():
        if standing.act is Act.CATCHES_UP:
            found[seat] = f"catches up with call {gate.front}" if gate.front > 1 else BEFORE
        elif standing.act is Act.WAITS:
            until = " until the job ends" if standing.for_good else ""
            found[seat] = f"waits outside{until}: {standing.why}"
    for seat, worker in job.roster.workers.items():
        if worker.told_in is not None and worker.call < gate.front and seat not in found:
            found[seat] = f"catches up with call {gate.front}"
    return found


def outside(job: JobState) -> frozenset[Seat]:
    """Seats whose processes wait until the job ends, or all others have ended."""
    standings = {} if (gate := gate_of(job)) is None else gate.standings
    return frozenset(seat for seat, standing in standings.items() if standing.for_good)


def lines(job: JobState) -> list[str]:
    """The same, in one line for each of them."""
    return [f"{seat} {what}" for seat, what in apart(job).items()]


def in_progress(members: Iterable[Worker]) -> list[str]:
    """The training call of a world's members, from the second one on."""
    call = max((worker.call for worker in members), default=0)
    return [f"call {call}"] if call > 1 else []


# --- what happens


RETRY_S: Final = 1.0
"""Pause after a failed try."""


# --- facts


def note_call(job: JobState, worker: Worker, value: object) -> None:
    """A process has named the call that it is in."""
    call = call_number(value)
    if call is not None:
        worker.call = call
        job.calls.named(call)


def result(job: JobState, worker: Worker, message: Mapping[str, Any]) -> None:
    """A process has kept the result of a call, or says why not."""
    call = call_number(message.get("call"))
    if call is None:
        return
    calls = job.calls
    differs = calls.refused.get(call) == UNEQUAL  # then no other rank's result counts for all
    kept = message.get("kept") is True and not differs
    reason = external_text(str(message.get("reason") or "")) or "no reason was given"
    calls.named(call + 1 if kept else call)  # one that cannot be kept is told before the next call begins
    if kept:
        calls.holds(worker.seat, max(call + 1, calls.pasts.get(worker.seat, 0)))
        calls.refused.pop(call, None)  # by an earlier launcher, or by another rank
    else:  # it may have been there until the ranks have compared it
        calls.holds(worker.seat, min(call, calls.pasts.get(worker.seat, 0)))
    if call == 0:
        calls.collectives, calls.record_due = kept, False
        if kept:
            if calls.recorded_in([worker.seat], worker.generation):
                job.save()
            return
    if not kept and not differs and (call not in calls.refused or reason == UNEQUAL):
        calls.refused[call] = reason
        for seat, results in list(calls.pasts.items()):  # another rank may have sent its own
            calls.holds(seat, results)
        job.save()
        if len(calls.refused) == 1:  # all later ones are refused for it
            then = (
                "a process that comes in a later call waits outside"
                if job.in_place
                else "each world from now on trains it again"
            )
            log.warning("%s was not kept: %s; %s", result_of(call), reason, then)
    before = calls.told.get(call)
    if before is None or (kept and not before):  # one rank speaks for all; another one may have kept it
        calls.told[call] = kept
        size = call_number(message.get("bytes"))
        why = {} if kept else {"reason": reason}
        fields = {"call": call, "step": worker.step, "bytes": size, "kept": kept, **why}
        job.do(Record("call_ended", worker.generation, fields))


def not_found(job: JobState, worker: Worker) -> None:
    """A process was told of results, and parks again in the same call: its slot's memory does not hold them, or it
    cannot read that memory. Then the others send it their results when it is in their world.
    """
    seat, calls = worker.seat, job.calls
    worker.blind = worker.blind or worker.useless
    worker.useless = True
    calls.holds(seat, min(calls.pasts.get(seat, 0), worker.call))


def note_held(job: JobState, agent: Agent, news: Mapping[str, Any]) -> None:
    """An agent reports the results in the memory of one slot, or of some."""
    host, slot, pasts = agent.host.name, news.get("slot"), news.get("pasts")
    if news.get("event") == "forgotten" and isinstance(slot, int):
        job.calls.holds(Seat(host, slot), 0)
    elif isinstance(slot, int) and (found := call_number(news.get("past"))) is not None:
        job.calls.holds(Seat(host, slot), found)
    elif isinstance(pasts, dict):
        slots = news.get("slots")
        for number in slots if isinstance(slots, dict) else pasts:
            if (seat := seat_of(host, number)) is not None:
                job.calls.holds(seat, call_number(pasts.get(number)) or 0)


def note_record(job: JobState, seat: Seat, status: Mapping[str, Any]) -> None:
    """An agent has joined, and reports whether a process has kept what collectives returned, and in which world. The
    process's own message may be lost.
    """
    calls, generation = job.calls, call_number(status.get("recorded"))
    if status.get("collectives") is not True:
        return
    calls.collectives = True
    if generation is None:
        calls.record_due = True
    elif calls.recorded is None or generation >= calls.record_world:
        calls.record_due = False
        if calls.recorded_in([seat], generation):
            job.save()


def inventory(job: JobState, host: str, statuses: Mapping[str, Any]) -> None:
    """An agent has joined, and reports its slots."""
    found = [
        (seat, results)
        for number, status in statuses.items()
        if isinstance(status, dict)
        and (results := call_number(status.get("past"))) is not None
        and (seat := seat_of(host, number)) is not None
    ]
    if found or job.calls.pasts:
        job.calls.agent_joined(host, found)


# --- transfers


def begin_first(job: JobState, source: Seat, target: Seat) -> None:
    """The same for a commit that is to follow: no other past is sent before."""
    transfer = job.calls.transfer
    if transfer is None or (transfer.source, transfer.target) != (source, target):
        cancel(job)
        begin(job, source, target)
    if job.calls.transfer is not None:
        job.calls.transfer.first = True


def begin(job: JobState, source: Seat, target: Seat) -> bool:
    """Begin to send the results of ``source`` to ``target``, if their agents can do it now."""
    calls, hosts = job.calls, {source.host, target.host}
    if calls.transfer is not None or job.now < calls.not_before:
        return False
    if not hosts.isdisjoint(job.helping):
        return False
    results, current = calls.pasts[source], calls.recorded is not None and not calls.is_stale(source)
    record = {"record": True} if current and calls.is_stale(target) else {}
    token = f"{job.helper_number + 1:032x}"  # as of commits
    world = calls.record_world if current else None
    calls.transfer = PastTransfer(target, source, results, token, job.now, record=world)
    if source.host == target.host:
        request = {"do": "copy_past", "from": source.slot, "to": target.slot, "results": results, **record}
        _ask(job, target.host, [source.slot, target.slot], request)
    else:
        request = {"do": "send_past", "transfer": token, "slot": source.slot, "results": results}
        _ask(job, source.host, [source.slot], request)
    return True


def look(job: JobState) -> None:
    """Give up a transfer that takes too long, or whose helper was replaced."""
    transfer = job.calls.transfer
    if transfer is None:
        return
    if not transfer.asked <= job.helpers[Purpose.PAST].keys():
        _failed(job, "another helper took the place of its own")
    elif job.now >= transfer.began + TRANSFER_S:
        _failed(job, f"it took longer than {TRANSFER_S:g} s")


def cancel(job: JobState) -> None:
    """Stop the transfer under way, if any."""
    if job.calls.transfer is not None:
        _end(job, drop=True)


def agent_lost(job: JobState, host: str) -> None:
    """A connection was lost, perhaps with an answer."""
    if job.calls.transfer is not None and host in job.calls.transfer.hosts:
        _failed(job, f"the connection to {host} was lost", blame=False)


def answered(job: JobState, agent: Agent, answer: HelperAnswer) -> None:
    """One end listens for the other, or is done, or has failed."""
    transfer, host = job.calls.transfer, agent.host.name
    if transfer is None:
        return
    receives, content = host == transfer.target.host, answer.content
    if answer.failed is not None:
        if receives or not answer.ended_well:  # the sender ends before the receiver
            if content.get("for_good") is True and not receives:
                job.calls.holds(transfer.source, 0)  # it does not hold them; the next report says what it holds
            _failed(job, f"{host}: {answer.failed}")
    elif not receives and isinstance(address := content.get("listening"), list):
        request = {"do": "receive_past", "transfer": transfer.token, "slot": transfer.target.slot, "from": address}
        record = {"record": True} if transfer.record is not None and job.calls.is_stale(transfer.target) else {}
        _ask(job, transfer.target.host, [transfer.target.slot], {**request, "results": transfer.results, **record})
    elif receives and "results" in content:
        _done(job, transfer, content)


def _done(job: JobState, transfer: PastTransfer, content: Mapping[str, Any]) -> None:
    results = call_number(content.get("results"))
    if results is None or results < transfer.results:
        _failed(job, f"{transfer.target.host}: an invalid answer")
        return
    sender = transfer.source.host
    if sender != transfer.target.host and sender in job.helpers[Purpose.PAST]:
        job.send(sender, {"do": "drop", "slots": []})  # it still waits if the receiver had the results already
    _end(job, drop=False)
    job.calls.holds(transfer.target, results)
    if transfer.record == job.calls.record_world and job.calls.recorded_in([transfer.target], transfer.record):
        job.save()
    what = f"the results of {results - 1} calls" if results > 1 else "what collectives returned before the first call"
    log.info("%s went from %s to %s", what, transfer.source, transfer.target)


def _ask(job: JobState, host: str, slots: list[int], request: Mapping[str, Any]) -> None:
    assert job.calls.transfer is not None
    job.calls.transfer.asked.add(host)
    if not job.run_helper(Purpose.PAST, host, slots, request):
        _failed(job, f"{host} is not connected", blame=False)


def _failed(job: JobState, why: str, *, blame: bool = True) -> None:
    transfer = job.calls.transfer
    assert transfer is not None
    _end(job, drop=True)
    if transfer.first:
        job.transfers.failed(transfer.source, began=transfer.began, now=job.now, hosts=transfer.hosts, blame=blame)
    job.calls.not_before = job.now + RETRY_S
    log.warning("%s got no results of calls from %s: %s", transfer.target, transfer.source, why)


def _end(job: JobState, *, drop: bool) -> None:
    for host in job.helpers[Purpose.PAST] if drop else ():
        job.send(host, {"do": "drop", "slots": []})
    job.helpers[Purpose.PAST].clear()
    job.calls.transfer = None


# --- planner


def plan(job: JobState) -> Plan:
    """Tell parked processes of the results in their slots, send results to slots that lack them, and end processes that
    have rolled back in a call that others have ended: the next ones in their slots catch up.
    """
    look(job)
    _end_those_behind(job)
    if (gate := gate_of(job)) is None:
        return NOTHING
    again_at = None
    for seat, standing in gate.standings.items():
        if standing.act is not Act.CATCHES_UP or standing.source is None:
            continue
        worker = job.roster.workers[seat]
        if standing.source == seat:
            # It goes on by itself, and parks again; until then it is not ready.
            worker.stage, worker.since, worker.told_in = Stage.BOOTING, job.now, worker.call
            job.tell(worker, "results")
        elif not begin(job, standing.source, seat):
            again_at = job.calls.not_before
    return Plan(again_at)


def _end_those_behind(job: JobState) -> None:
    if job.calls.newest <= 1 or not job.in_place or not job.rendezvous.waiting:
        return  # the usual case
    waiting = {life.seat for life in job.rendezvous.waiting}
    for seat, why in behind(in_calls(job), waiting, job.calls.refused).items():
        worker = job.roster.workers[seat]
        worker.behind = why
        job.world.behind[worker.life] = why
        job.world.not_at_fault.add(worker.life)
        orders.kill(job, worker, Cause.BEHIND)
