"""Which processes are in the next world. Pure: ``(now, situation, limits) → decision with its reason``.

Newcomers get ready while the others train; the world changes once, when they are ready. A member that has to leave
leaves when the others are enough. A world that has lost a member is formed again at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, NamedTuple

from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.launcher.rules.membership.rendezvous import ProcessId, Seat

SETTLE_CAP_S: Final = 30.0
"""However many newcomers follow one another, the first one waits no longer than this."""
REPLACE_MARGIN_S: Final = 2.0
"""What is left of a deadline when waiting for replacements ends."""

Commit = tuple[int, ...]


class Stage(Enum):
    """How far a process is."""

    BOOTING = "booting"
    PARKED = "parked"
    LIVE = "live"
    """It was told to go live, or is a member already."""


class Process(NamedTuple):
    """A living process, as decisions see it.

    ``since``: when it came to its stage. ``holds``: the newest commit in its
    slot's memory. ``broken``: it asks for a rank though it has one, so its world is
    lost. ``leaves_by``: when its host will be gone (mono), if that is known.
    ``done``: its training function has returned; it may have much to do yet, but it comes to no other world.
    ``trained``: it has agreed with a world on the state, and so has a state beyond that of its start.
    ``created``: when it was started, or taken over.
    """

    life: ProcessId
    stage: Stage
    since: float = 0.0
    holds: Commit | None = None
    broken: bool = False
    leaves_by: float | None = None
    done: bool = False
    trained: bool = False
    created: float = 0.0

    @property
    def seat(self) -> Seat:
        """The host and slot in which it runs."""
        return self.life.seat


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a decision.

    ``wanted``: seats that ought to be filled, most senior first. ``processes``:
    those that live. ``members``: of the newest world, dead ones too. ``formed``:
    they have their ranks; ``settled``: and have agreed on their state.
    ``begun``: there has been a world that settled.
    """

    wanted: tuple[Seat, ...]
    processes: Mapping[Seat, Process] = field(default_factory=dict)
    members: tuple[ProcessId, ...] = ()
    formed: bool = True
    settled: bool = True
    begun: bool = False


@dataclass(frozen=True, slots=True)
class WorldLimits:
    """``start`` processes are needed for the first world, ``least`` for any other; ``most`` None is no limit."""

    start: int = 1
    least: int = 1
    most: int | None = None
    allowed: tuple[int, ...] = ()
    settle_s: float = 3.0
    settle_cap_s: float = SETTLE_CAP_S

    def size(self, available: int, *, begun: bool) -> int:
        """The largest world that ``available`` processes may form; 0 if that is none."""
        size = available if self.most is None else min(available, self.most)
        if self.allowed:
            size = max((allowed for allowed in self.allowed if allowed <= size), default=0)
        return size if size >= (self.least if begun else self.start) else 0

    def of_slots(self, slots: int) -> WorldLimits:
        """The limits of a job whose start is to have all slots, now that these are ``slots``.

        No list asks for more than the first one. ``least`` falls with ``start`` if it is the same number.
        """
        if not 0 < slots < self.start:
            return self
        fit = replace(self, least=1).size(slots, begun=True) or slots
        least = fit if self.least == self.start else self.least
        return replace(self, start=max(fit, least), least=least)


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
"""Cause of a world that goes on without members that are done with training."""
CAUSES: Final = (
    *("start", "all were lost", "worker failed", "connection lost", FINISHED),
    *("hosts added", "hosts removed", "hosts changed", "cooldown over"),
)
"""All causes that a world can have."""
STILL_FORMING: Final = WorldDecision(None, "", "the newest world is still forming")
AS_IT_SHOULD_BE: Final = WorldDecision(None, "", "the world is as it should be")
NOT_READY_YET: Final = WorldDecision(None, "", "newcomers are not ready yet")


def seats(
    hosts: Sequence[tuple[Host, Sequence[int]]],
    limits: WorldLimits,
    taken: Callable[[], Mapping[Seat, Stage]] = dict,
    holders: Callable[[], frozenset[str]] = frozenset,
) -> tuple[Seat, ...]:
    """Seats that ought to be filled: ``hosts`` most senior first, with their usable slots.

    As many as the largest world may have. Of more seats the ``taken`` ones come first, the most advanced before the
    others, so a host that comes back does not replace its replacement. While no process trains, the ``holders`` of the
    newest commit come first. Below the smallest world all seats are wanted. Both are asked for only if there are more.
    """
    every = tuple(Seat(host.name, slot) for host, slots in hosts for slot in slots)
    size = limits.size(len(every), begun=True)
    if not size or size == len(every):
        return every
    stages = taken()
    needed = frozenset() if Stage.LIVE in stages.values() else holders()

    def preference(offer: tuple[Host, Seat]) -> tuple[bool, int]:
        """What is least is chosen first; of equal ones, the most senior."""
        host, seat = offer
        return host.name not in needed, _NEARNESS[stages.get(seat)]

    first = sorted(((host, Seat(host.name, slot)) for host, slots in hosts for slot in slots), key=preference)
    chosen = frozenset(seat for _, seat in first[:size])
    return tuple(seat for seat in every if seat in chosen)


def decide(now: float, situation: Situation, limits: WorldLimits) -> WorldDecision:
    """Decide which processes form the next world, if any."""
    view = _View(now, situation, limits)
    if not view.alive:
        return WorldDecision(None, "", "training is done") if view.done else _begin(view)
    if view.lost or view.broken:
        return _after_loss(view)
    if not (situation.formed and situation.settled):
        return STILL_FORMING
    if view.done:
        return WorldDecision(None, "", "training is done, and the last ones are about to say so")
    if view.leaving:
        decision = _without_leaving(view)
        if decision is not None:
            return decision
    return _with_newcomers(view)


def decide_for_intact(*, settled: bool, coming: int | None) -> WorldDecision | None:
    """What :func:`decide` says of a world with all of its members, without a look at each process there is.

    They are live, none of them is done, and none has lost its connections. ``settled``: they have their ranks and have
    agreed on their state. All are in wanted seats, and ``coming`` more seats are wanted, with no process that is ready;
    None: that is not so, and not enough to decide by.
    """
    if not settled:
        return STILL_FORMING
    if coming is None:
        return None
    return NOT_READY_YET if coming else AS_IT_SHOULD_BE


_NEARNESS: Final[Mapping[Stage | None, int]] = {Stage.LIVE: 0, Stage.PARKED: 1, Stage.BOOTING: 2, None: 3}
"""Of a seat's process to the world."""


class _View:
    """The situation, sorted."""

    def __init__(self, now: float, situation: Situation, limits: WorldLimits) -> None:
        processes, wanted = situation.processes, situation.wanted
        self.now, self.situation, self.limits = now, situation, limits
        self.done: list[Process] = []
        self.alive: list[Process] = []
        self.lost: list[ProcessId] = []
        self.staying: list[Process] = []
        self.leaving: list[Process] = []
        needed, inside = frozenset(wanted), set[Seat]()
        for life in situation.members:  # there may be thousands
            process = processes.get(life.seat)
            if process is None or process.stage is not Stage.LIVE or process.life != life:
                self.lost.append(life)
                continue
            inside.add(life.seat)
            (self.done if process.done else self.alive).append(process)
            if not process.done:
                (self.staying if life.seat in needed else self.leaving).append(process)
        if not situation.formed:  # a process that is done does not join, and the others would wait for it
            self.lost += [process.life for process in self.done]
        self.broken = [process for process in self.alive if process.broken]
        outside = [processes.get(seat) for seat in wanted if seat not in inside]
        self.parked = [process for process in outside if process is not None and process.stage is Stage.PARKED]
        self.coming = sum(process is None or process.stage is Stage.BOOTING for process in outside)

    @property
    def window_closes(self) -> float:
        """When no more newcomers are waited for: it slides from the one that was ready last.

        If all that are wanted are ready, it slides from the start of the last one: hosts that come together are listed
        while the first of them boots.
        """
        ready = [process.since for process in self.parked]
        last = max(ready) if self.coming else max(process.created for process in self.parked)
        return min(last + self.limits.settle_s, min(ready) + self.limits.settle_cap_s)

    @property
    def must_stay(self) -> list[Process]:
        """Leaving members that stay for one more world, because no staying member has the state yet."""
        newest = max((process.holds for process in self.alive if process.holds is not None), default=None)
        has = newest is not None and any(process.holds == newest for process in self.staying)
        if has or (self.staying and self.situation.settled):
            return []
        # Prefer a member that holds the newest commit. If no commit is known, take any member.
        return sorted(self.leaving, key=lambda process: process.holds != newest)[: 1 if self.staying else None]

    def chosen(self, processes: Sequence[Process]) -> tuple[ProcessId, ...]:
        """As many of ``processes`` as one world takes, the first ones; empty if they are too few."""
        size = self.limits.size(len(processes), begun=self.situation.begun)
        return tuple(process.life for process in processes[:size])


def _begin(view: _View) -> WorldDecision:
    """No process trains: the first world, or the first one after all were lost."""
    begun = view.situation.begun
    chosen = view.chosen(view.parked)
    if not chosen:
        need = view.limits.least if begun else view.limits.start
        return WorldDecision(None, "", f"processes ready: {len(view.parked)}, needed: {need}")
    cause = "all were lost" if begun else "start"
    if not view.coming:
        return WorldDecision(chosen, cause, "all that are wanted are ready")
    if view.now < view.window_closes:
        return WorldDecision(None, "", f"processes on their way: {view.coming}", view.window_closes)
    return WorldDecision(chosen, cause, f"processes late: {view.coming}")


def _after_loss(view: _View) -> WorldDecision:
    """Decide about a newest world that has lost a process or its connections."""
    candidates = [*view.must_stay, *view.staying, *view.parked]
    chosen = view.chosen(candidates)
    cause = "worker failed" if view.lost else FINISHED if view.done else "connection lost"
    gone = ", ".join(str(life.seat) for life in view.lost)
    reason = f"lost {gone}" if view.lost else f"{view.broken[0].seat} has lost its connections"
    if not chosen:
        return WorldDecision(None, cause, f"{reason}; processes left: {len(candidates)}, needed: {view.limits.least}")
    return WorldDecision(chosen, cause, reason)


def _without_leaving(view: _View) -> WorldDecision | None:
    """Remove members that are no longer wanted; None if they have to stay for now."""
    leaving = ", ".join(str(process.seat) for process in view.leaving)
    chosen = view.chosen([*view.staying, *view.parked])
    if view.staying and chosen:
        return WorldDecision(chosen, "hosts removed", f"{leaving} may go")
    if view.staying or not view.parked or not view.chosen(view.parked):
        return None
    first_leave = min((process.leaves_by for process in view.leaving if process.leaves_by is not None), default=None)
    closes = view.window_closes if first_leave is None else min(view.window_closes, first_leave - REPLACE_MARGIN_S)
    if view.coming and view.now < closes:
        return WorldDecision(None, "", f"{leaving} stays until its replacements are ready", closes)
    # No new member holds a commit. Keep one old member for one world, to send it.
    together = (view.leaving[0].life, *view.chosen(view.parked))
    return WorldDecision(together, "hosts changed", f"{leaving} may go when the others have the state")


def _with_newcomers(view: _View) -> WorldDecision:
    kept = [*view.staying, *view.leaving]
    chosen = view.chosen([*kept, *view.parked]) if view.parked else ()
    if len(chosen) <= len(view.alive):
        return NOT_READY_YET if view.coming else AS_IT_SHOULD_BE
    if view.now < view.window_closes:
        return WorldDecision(None, "", "more newcomers may come", view.window_closes)
    return WorldDecision(chosen, "hosts added", f"newcomers ready: {len(chosen) - len(view.alive)}")


class Standing(NamedTuple):
    """What of a process counts for its rank, as :class:`Process` has it."""

    life: ProcessId
    holds: Commit | None
    trained: bool


def in_order(members: Iterable[Standing | Process], wanted: Sequence[Seat]) -> tuple[ProcessId, ...]:
    """Order in which ranks are dealt: hosts with the newest commit first, then by seniority; on each host likewise.

    So rank 0 holds the newest commit, and a user's own sync from rank 0 is right, too. If no commit is known, as with
    Horovod's own State, processes that have trained come first: a newcomer as rank 0 would reset the training of all.
    """
    everyone = list(members)
    place = {seat: index for index, seat in enumerate(wanted)}
    newest = max((process.holds for process in everyone if process.holds is not None), default=None)
    by_host: dict[str, list[_Ranked]] = {}
    for process in everyone:  # there may be thousands
        behind = process.holds != newest if newest is not None else not process.trained
        life = process.life
        ranked = (behind, life.seat.slot, place.get(life.seat, len(place)), life)
        by_host.setdefault(life.seat.host, []).append(ranked)
    return tuple(life for group in sorted(by_host.values(), key=_first) for _, _, _, life in sorted(group))


_Ranked = tuple[bool, int, int, ProcessId]
"""Of a process: whether it is behind, its slot, its place among those that are wanted."""


def _first(group: Sequence[_Ranked]) -> tuple[bool, int, Seat]:
    if len(group) == 1:
        behind, _, place, life = group[0]
        return behind, place, life.seat
    return min(each[0] for each in group), min(each[2] for each in group), group[0][3].seat
