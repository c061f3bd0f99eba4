"""Which processes are in the next world. Pure: ``(now, situation, limits) → decision with its reason``.

Newcomers get ready while the others train; the world changes once, when they are ready. A member that has to leave
leaves when the others are enough. A world that has lost a member is formed again at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.departures import notices
from hvd_elastic_ext.launcher.membership.rendezvous import ProcessId, Seat

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState


SETTLE_CAP_S: Final = 30.0
"""Longest wait of the first newcomer, however many others follow it."""
SETTLE_S: Final = 3.0
LISTED_S: Final = 1.0
"""Seconds in which hosts that come together are listed one after the other, unless ``--settle`` says more. Python and
torch take longer to start: newcomers that are all ready then join at once.
"""
REPLACE_MARGIN_S: Final = 2.0
"""The time before a deadline at which the wait for replacements ends."""
Commit = tuple[int, ...]


class Stage(Enum):
    """How far a process is."""

    BOOTING = "booting"
    PARKED = "parked"
    LIVE = "live"
    """It has the order to go live, or is a member already."""


class Process(NamedTuple):
    """A living process, as decisions see it."""

    life: ProcessId
    stage: Stage
    since: float = 0.0
    """When it reached its stage."""
    holds: Commit | None = None
    """The newest commit in its slot's memory."""
    broken: bool = False
    """It asks for a rank though it has one, so its world is lost."""
    leaves_by: float | None = None
    """When its host will be gone (mono), if known."""
    done: bool = False
    """Its training function has returned; it may run on, but does not join another world."""
    trained: bool = False
    """It has agreed with a world on the state, so its state is not that of its start."""
    created: float = 0.0
    """When it was started, or taken over."""
    spare: bool = False
    """It was ready before its seat was wanted."""

    @property
    def seat(self) -> Seat:
        """The host and slot in which it runs."""
        return self.life.seat


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a decision."""

    wanted: tuple[Seat, ...]
    """Seats that should be filled, most senior first."""
    processes: Mapping[Seat, Process] = field(default_factory=dict)
    """Those that live."""
    members: tuple[ProcessId, ...] = ()
    """Those of the newest world, dead ones included."""
    formed: bool = True
    """The members have their ranks."""
    settled: bool = True
    """They have also agreed on their state."""
    begun: bool = False
    """A world has settled before."""
    waiting: Collection[ProcessId] = ()
    """Processes that ask for a rank."""
    finishing: bool = False
    """A process that was done with training has ended."""


@dataclass(frozen=True, slots=True)
class WorldLimits:
    """How large a world may be, and how long ready newcomers wait."""

    start: int = 1
    """Processes that the first world needs."""
    least: int = 1
    """Those that any other world needs."""
    most: int | None = None
    """Those that a world has at most; None: no limit."""
    allowed: tuple[int, ...] = ()
    """Sizes that a world may have; empty: any."""
    settle_s: float = SETTLE_S
    """How long ready newcomers wait for others that are not ready, from the last one that is."""
    listed_s: float | None = None
    """How long they wait for hosts that are not listed yet, from the start of the last one; None: :attr:`settle_s`."""
    settle_cap_s: float = SETTLE_CAP_S

    def size(self, available: int, *, begun: bool) -> int:
        """The largest world that ``available`` processes may form; 0 if that is none."""
        size = available if self.most is None else min(available, self.most)
        if self.allowed:
            size = max((allowed for allowed in self.allowed if allowed <= size), default=0)
        return size if size >= (self.least if begun else self.start) else 0

    def of_slots(self, slots: int) -> WorldLimits:
        """The limits of a job that starts with all slots, now that there are ``slots``.

        A later list never asks for more than the first one. ``least`` falls with ``start`` if both are the same number.
        """
        if not 0 < slots < self.start:
            return self
        fit = replace(self, least=1).size(slots, begun=True) or slots
        least = fit if self.least == self.start else self.least
        return replace(self, start=max(fit, least), least=least)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read ``N,N,…``, the sizes that a world may have. Raises :class:`UsageError`, one line."""
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise UsageError(f"--allowed-sizes {text!r}: write whole numbers above 0, such as 2,4,8")
    return tuple(sorted(map(int, words)))


@dataclass(frozen=True, slots=True)
class WorldDecision:
    """``members``: of the next world; None to leave things as they are.

    ``again_at``: when time alone may change the decision (mono).
    """

    members: tuple[ProcessId, ...] | None
    cause: str
    reason: str
    again_at: float | None = None


FINISHED: Final = "ranks finished"
"""Cause of a world that continues without members that are done with training."""
STILL_FORMING: Final = WorldDecision(None, "", "the newest world is still forming")
AS_WANTED: Final = WorldDecision(None, "", "the world is as it should be")
NOT_READY_YET: Final = WorldDecision(None, "", "newcomers are not ready yet")


def decide(now: float, situation: Situation, limits: WorldLimits) -> WorldDecision:
    """Decide which processes form the next world, if any."""
    return decide_by(now, Difference.of(situation), limits)


def decide_by(now: float, found: Difference, limits: WorldLimits) -> WorldDecision:
    """The same, for a caller that knows the differences already."""
    if not (found.staying or found.leaving):
        return WorldDecision(None, "", "training is done") if found.over else _begin(now, found, limits)
    if found.lost or found.broken:
        return _after_loss(found, limits)
    if found.over:
        return WorldDecision(None, "", "training is done, and some members have not reported that yet")
    if not (found.formed and found.settled):
        return STILL_FORMING
    if found.leaving:
        decision = _without_leaving(now, found, limits)
        if decision is not None:
            return decision
    return _with_newcomers(now, found, limits)


@dataclass(frozen=True, slots=True)
class Difference:
    """How the newest world differs from the wanted one. It names few of thousands of processes, each group in its order
    in the world. If none is lost and the world still forms, the wanted seats do not matter."""

    staying: Sequence[ProcessId] = ()
    """Members that train on in wanted seats."""
    leaving: Sequence[Process] = ()
    """Members in other seats."""
    must_stay: Sequence[ProcessId] = ()
    """Leaving ones that a world without the lost ones needs."""
    lost: Sequence[ProcessId] = ()
    """Members that have ended, or end."""
    done: Sequence[ProcessId] = ()
    """Members whose training function has returned."""
    broken: Sequence[ProcessId] = ()
    """Members that ask for a rank though they have one."""
    parked: Sequence[Process] = ()
    """Ready processes in wanted seats, most senior first."""
    coming: int = 0
    """The number of wanted seats without a ready process."""
    formed: bool = True
    settled: bool = True
    begun: bool = False
    over: bool = False
    """Some process, of any world, is done: no newcomer joins, and none that was called to a world that still forms."""

    @classmethod
    def of(cls, situation: Situation) -> Difference:
        """Compare each process."""
        processes, wanted = situation.processes, situation.wanted
        needed, inside = frozenset(wanted), set[Seat]()
        lost, done, staying, leaving = list[ProcessId](), list[ProcessId](), list[Process](), list[Process]()
        over = situation.finishing or any(process.done for process in processes.values())
        for life in situation.members:
            process = processes.get(life.seat)
            if process is None or process.stage is not Stage.LIVE or process.life != life:
                lost.append(life)
                continue
            inside.add(life.seat)
            if process.done:
                done.append(life)
            elif situation.formed or process.trained or not over:
                (staying if life.seat in needed else leaving).append(process)
        if not situation.formed and any(each.life in situation.waiting for each in (*staying, *leaving)):
            lost += done  # a process that is done does not join, and the others would wait for it
        broken = {each.life for each in (*staying, *leaving) if each.broken}
        outside = [] if over else [processes.get(seat) for seat in wanted if seat not in inside]
        return cls(
            [each.life for each in staying],
            leaving,
            _must_stay(staying, leaving, settled=situation.settled),
            lost,
            done,
            [life for life in situation.members if life in broken] if broken else (),
            [each for each in outside if each is not None and each.stage is Stage.PARKED],
            sum(each is None or each.stage is Stage.BOOTING for each in outside),
            situation.formed,
            situation.settled,
            situation.begun,
            over,
        )

    def window_closes(self, limits: WorldLimits) -> float:
        """When the wait for further newcomers ends. It moves with the newcomer that was ready last.

        If all wanted ones are ready, it moves with the start of the last one instead: hosts that come together are
        listed while the first of them boots.

        Spares that are called in are ready at once: alone, they leave the others the longest time to start.
        """
        ready = [process.since for process in self.parked if not process.spare]
        if not ready:
            called = max(process.since for process in self.parked)
            return called + limits.settle_cap_s if self.coming else called
        closes = max(ready) + limits.settle_s
        if not self.coming:
            listed_s = limits.settle_s if limits.listed_s is None else limits.listed_s
            closes = max(process.created for process in self.parked if not process.spare) + listed_s
        return min(closes, min(ready) + limits.settle_cap_s)

    @property
    def ready(self) -> list[ProcessId]:
        """Newcomers that may join."""
        return [process.life for process in self.parked]

    def chosen(self, lives: Sequence[ProcessId], limits: WorldLimits) -> tuple[ProcessId, ...]:
        """The first ones, as many as one world takes; empty if there are too few."""
        return tuple(lives[: limits.size(len(lives), begun=self.begun)])


def _must_stay(staying: Sequence[Process], leaving: Sequence[Process], *, settled: bool) -> list[ProcessId]:
    """Leaving members that stay for one more world, because no staying member has the state yet."""
    if not leaving or (staying and settled):
        return []
    newest = max((each.holds for each in (*staying, *leaving) if each.holds is not None), default=None)
    if newest is not None and any(each.holds == newest for each in staying):
        return []
    # Prefer a member that holds the newest commit. If no commit is known, take any member.
    first = sorted(leaving, key=lambda process: process.holds != newest)[: 1 if staying else None]
    return [process.life for process in first]


def _begin(now: float, found: Difference, limits: WorldLimits) -> WorldDecision:
    """No process trains: the first world, or the first one after all were lost."""
    chosen = found.chosen(found.ready, limits)
    if not chosen:
        need = limits.least if found.begun else limits.start
        return WorldDecision(None, "", f"processes ready: {len(found.parked)}, needed: {need}")
    cause = "all were lost" if found.begun else "start"
    if not found.coming:
        return WorldDecision(chosen, cause, "all that are wanted are ready")
    closes = found.window_closes(limits)
    if now < closes:
        return WorldDecision(None, "", f"processes on their way: {found.coming}", closes)
    return WorldDecision(chosen, cause, f"processes late: {found.coming}")


def _after_loss(found: Difference, limits: WorldLimits) -> WorldDecision:
    """Decide about a newest world that has lost a process or its connections."""
    candidates = [*found.must_stay, *found.staying, *found.ready]
    chosen = found.chosen(candidates, limits)
    failed = [life for life in found.lost if life not in found.done]
    cause = "worker failed" if failed else FINISHED if found.done else "connection lost"
    if found.lost:
        how, gone = ("lost", failed) if failed else ("done with training:", found.lost)
        reason = f"{how} {', '.join(str(life.seat) for life in gone)}"
    else:
        reason = f"{found.broken[0].seat} has lost its connections"
    if not chosen:
        return WorldDecision(None, cause, f"{reason}; processes left: {len(candidates)}, needed: {limits.least}")
    return WorldDecision(chosen, cause, reason)


def _without_leaving(now: float, found: Difference, limits: WorldLimits) -> WorldDecision | None:
    """Remove members that are no longer wanted; None if they have to stay for now."""
    leaving = ", ".join(str(process.seat) for process in found.leaving)
    chosen = found.chosen([*found.staying, *found.ready], limits)
    if found.staying and chosen:
        return WorldDecision(chosen, "hosts removed", f"{leaving} may go")
    if found.staying or not found.parked or not found.chosen(found.ready, limits):
        return None
    first_leave = min((process.leaves_by for process in found.leaving if process.leaves_by is not None), default=None)
    closes = found.window_closes(limits)
    closes = closes if first_leave is None else min(closes, first_leave - REPLACE_MARGIN_S)
    if found.coming and now < closes:
        return WorldDecision(None, "", f"{leaving} stays until its replacements are ready", closes)
    # No new member holds a commit. Keep one old member for one world, to send it.
    together = (found.leaving[0].life, *found.chosen(found.ready, limits))
    return WorldDecision(together, "hosts changed", f"{leaving} may go when the others have the state")


def _with_newcomers(now: float, found: Difference, limits: WorldLimits) -> WorldDecision:
    trains = len(found.staying) + len(found.leaving)
    kept = [*found.staying, *(process.life for process in found.leaving)]
    chosen = found.chosen([*kept, *found.ready], limits) if found.parked else ()
    if len(chosen) <= trains:
        return NOT_READY_YET if found.coming else AS_WANTED
    closes = found.window_closes(limits)
    if now < closes:
        return WorldDecision(None, "", "more newcomers may come", closes)
    return WorldDecision(chosen, "hosts added", f"newcomers ready: {len(chosen) - trains}")


def in_order(
    members: Sequence[ProcessId], wanted: Sequence[Seat], *, holds: Sequence[Commit | None], trained: Sequence[bool]
) -> tuple[ProcessId, ...]:
    """The order of ranks: hosts with the newest commit first, then by seniority; on each host likewise.

    So rank 0 holds the newest commit, and a user's own sync from rank 0 is also right. If no commit is known, as with
    Horovod's own State, processes that have trained come first: a newcomer as rank 0 would reset the training of all.
    ``holds``, ``trained``: of each member, as in :class:`Process`.
    """
    newest = max({commit for commit in holds if commit is not None}, default=None)
    behind = [commit != newest for commit in holds] if newest is not None else [not each for each in trained]
    first = [life for life, late in zip(members, behind, strict=True) if not late]
    last = list(compress(members, behind))
    hosts = {life.seat.host for life in last}
    if not hosts or all(life.seat.host not in hosts for life in first):
        found = _as_wanted(first, wanted), _as_wanted(last, wanted)  # the usual case, and there may be thousands
        if found[0] is not None and found[1] is not None:
            return (*found[0], *found[1])
    place = {seat: index for index, seat in enumerate(wanted)}
    by_host: dict[str, list[_Ranked]] = {}
    for life, late in zip(members, behind, strict=True):
        ranked = (late, life.seat.slot, place.get(life.seat, len(place)), life)
        by_host.setdefault(life.seat.host, []).append(ranked)
    return tuple(life for group in sorted(by_host.values(), key=_first) for _, _, _, life in sorted(group))


def _as_wanted(members: Sequence[ProcessId], wanted: Sequence[Seat]) -> Sequence[ProcessId] | None:
    """In the order of the wanted seats; None if that is not host by host and slot by slot, or if not all are wanted."""
    rest = iter(wanted)
    if not all(life.seat in rest for life in members):  # usually they are in that order already
        by_seat = {life.seat: life for life in members}
        members = [by_seat[seat] for seat in wanted if seat in by_seat]
        if len(members) < len(by_seat):
            return None
    hosts, changes, before = set[str](), 0, Seat("", -1)
    for life in members:
        seat = life.seat
        if seat.host != before.host:
            hosts.add(seat.host)
            changes += 1
        elif seat.slot < before.slot:
            return None
        before = seat
    return members if len(hosts) == changes else None


_Ranked = tuple[bool, int, int, ProcessId]
"""Of a process: whether it is behind, its slot, its place among the wanted ones."""


def _first(group: Sequence[_Ranked]) -> tuple[bool, int, Seat]:
    if len(group) == 1:
        behind, _, place, life = group[0]
        return behind, place, life.seat
    return min(each[0] for each in group), min(each[2] for each in group), group[0][3].seat


# --- what follows from the state


def difference(job: JobState) -> Difference:
    """The input of :func:`world_change.decide_by`.

    While thousands of processes come into a world, there is a look after nearly every message. As long as all members
    are there, and no seat beyond theirs is wanted or they have not all come yet, they need no comparison one by one.
    """
    members, roster, live = job.world.members, job.roster, Stage.LIVE
    whole = all(each.stage is live and each.killed is None for each in roster.present(members))
    over = job.outcome.finishing or any(each.done for each in roster.workers.values())
    if not whole or over or not job.standing:
        return Difference.of(job.situation)
    formed, settled, begun = job.formed, job.settled, job.world.begun
    if not (formed and settled):
        return Difference(members, formed=formed, settled=settled, begun=begun)
    wanted = frozenset(job.wanted)
    if not wanted <= {life.seat for life in members}:
        return Difference.of(job.situation)
    unwanted = [life.seat for life in members if life.seat not in wanted]
    leaves_by = notices.leaves_by(job) if unwanted else {}
    leaving = [roster.process(seat, leaves_by=leaves_by) for seat in unwanted]
    return Difference(
        [life for life in members if life.seat in wanted] if unwanted else members,
        [process for process in leaving if process is not None],
        begun=begun,
    )
