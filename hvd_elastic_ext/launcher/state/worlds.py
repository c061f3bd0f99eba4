"""One world after the other: its members are called together, and given their ranks when all have come."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from hvd_elastic_ext.core.rank_info import Place
from hvd_elastic_ext.launcher.rules.health.causes import Cause
from hvd_elastic_ext.launcher.rules.membership.custody import Loss
from hvd_elastic_ext.launcher.rules.membership.membership import Decision, Limits, Situation, Stage, decide, in_order
from hvd_elastic_ext.launcher.rules.membership.rendezvous import Life, Seat, places
from hvd_elastic_ext.launcher.state.context import Station
from hvd_elastic_ext.launcher.state.fleet import Fleet
from hvd_elastic_ext.launcher.state.resize_report import Accounts
from hvd_elastic_ext.launcher.state.roster import Worker

TELL_AGAIN_S: Final = 5.0
"""A member that was told of a change and has not come is told again after this time."""
SYNC_S: Final = 10.0
"""Members that have no elastic loop, and so cannot say when they agree on the state, do after this time in a world."""
NOTICE_S: Final = 0.25
"""How long a member of a world that lost somebody may take to notice before its connections are cut for it."""
STUCK_S: Final = 8.0
"""How long a member whose connections were cut may go on waiting for a peer that it lost.

Gloo tells all who wait on a connection of its end, but not one that has handed over something that is not all sent:
that one waits out Gloo's 30 s, and everybody else for it.
"""
MENDING: Final = ("worker failed", "connection lost")


class Gate(Protocol):
    """Asked when all members of the newest world wait for their ranks."""

    def may_form(self) -> tuple[bool, Loss | None]:
        """Whether they may be told them, and what the world forms behind."""

    def formed(self, loss: Loss | None) -> int | None:
        """They were told. How many steps are done again; None if no step is known of."""


class Open:
    """Every world may form."""

    def may_form(self) -> tuple[bool, Loss | None]:
        return True, None

    def formed(self, loss: Loss | None) -> int | None:
        return None


class Worlds:
    """The newest world: its members, how far it is, and why it was formed."""

    def __init__(self, station: Station, fleet: Fleet) -> None:
        self.members: tuple[Life, ...] = ()
        self.begun = False
        """Training has begun: some world has formed."""
        self.changes = 0
        """Worlds formed since the first one."""
        self.mended = 0
        """How many of them followed one that was lost: so often training was rolled back."""
        self.accounts = Accounts(station)
        self.gate: Gate = Open()
        """Whether a world may form."""
        self.excused: set[Life] = set()
        """Members of the newest world that have ended because they were to, or because of others."""
        self._station = station
        self._fleet = fleet
        self._decision = Decision(None, "", "")
        self._rough: Mapping[Life, Place] = {}
        """About where each member will be. Made when it is needed first, for all: there may be thousands."""
        self._own = False
        """A world was formed here."""
        self._found: dict[Life, int] = {}
        """Generation of each process of another launcher, as it was found."""
        self._fences = False
        """Members that do not notice by themselves that the world is lost have their connections cut."""
        self._let_go: frozenset[Life] = frozenset()
        """Members of the worlds before that are not in this one: as long as it forms, they may be waited for there."""
        self._late_from = 0.0
        """Before then nobody is late who has been called to the newest world (mono)."""
        self._before: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        """By host, members that were lost since a world last formed."""

    @property
    def formed(self) -> bool:
        """Whether the members of the newest world have their ranks."""
        return not self.members or self._station.rendezvous.formed

    def rank(self, life: Life) -> int | None:
        """The rank of a process, or before there was a world the one that is planned for it; None if it has none."""
        place = self._station.rendezvous.place(life)
        if place is not None or self.begun:
            return None if place is None else place.rank
        worker = self._station.roster.alive(life)
        return None if worker is None else worker.planned

    def next_look(self) -> float | None:
        """When a member may have to be cut off from the others (mono)."""
        workers = self._station.roster.present(self.members if self._fences and not self.formed else ())
        return min((worker.fence_at for worker in workers if worker.fence_at is not None), default=None)

    @property
    def standing(self) -> bool:
        """Whether there is a world with all of its members, and none of them asks for another one."""
        whole = bool(self.members) and len(self._station.roster.present(self.members)) == len(self.members)
        return whole and self._station.rendezvous.asked_again.isdisjoint(self.members)

    @property
    def settled(self) -> bool:
        """Whether all members of the newest world are in it and have agreed on the state."""
        generation, present = self._station.generation, self._station.roster.present(self.members)
        if not self.formed or len(present) < len(self.members):
            return False
        undecided = [worker for worker in present if worker.agreed < generation or worker.generation < generation]
        if any(worker.generation < generation for worker in undecided):
            return False
        # Where there is an elastic loop, all say so, however long it takes to send what newcomers need.
        latest = self._station.now() - SYNC_S
        return not undecided or (
            all(worker.since <= latest for worker in undecided) and not any(worker.loops for worker in present)
        )

    def situation(self, wanted: tuple[Seat, ...]) -> Situation:
        """What is known, for a decision."""
        station = self._station
        broken = station.rendezvous.asked_again
        return Situation(
            wanted,
            station.roster.processes(broken=broken, leaves_by=station.leaves_by),
            members=self.members,
            formed=self.formed,
            settled=self.settled,
            begun=self.begun,
        )

    def change(self, decision: Decision) -> None:
        """Begin the world that was decided on."""
        members = decision.members
        assert members is not None
        station, before = self._station, self.members
        old, new = frozenset(before), frozenset(members)
        joining = {life.seat.host for life in new - old}
        if decision.cause == "hosts added" and joining <= self._fleet.recovering:
            decision = replace(decision, cause="cooldown over")
        self._fleet.recovering -= joining
        living = {worker.life for worker in station.roster.present(before)}
        self._lost.update(life.seat.host for life in before if life not in living and life not in self.excused)
        self.excused.clear()
        self._let_go = (old if self.formed else self._let_go | old) - new
        self.changes += bool(self.begun and self.formed)
        self.mended += bool(self.begun and self.formed and decision.cause in MENDING)
        self._own = True
        station.generation += 1
        station.answer(station.rendezvous.form(station.generation, members))
        self.members, self._decision = members, decision
        self._rough = {}
        self._call(station.roster.present(members))
        for worker in station.roster.present(life for life in before if life not in new):
            if worker.leaving is None and not worker.done:
                self._fleet.send_away(worker, decision.reason)

    def _call(self, members: Sequence[Worker]) -> None:
        """Have the members of the newest world come to it."""
        now, waiting = self._station.now(), self._station.rendezvous.waiting
        # Whoever is lost may be waited for by all the others. Most notice by themselves, and at once.
        self._fences = self._decision.cause in MENDING or self._torn
        fence_at = now + NOTICE_S if self._fences else None
        self._late_from = now + NOTICE_S
        absent: list[Worker] = []
        for worker in members:
            worker.told_at = now
            if worker.stage is Stage.PARKED:
                worker.stage, worker.since, worker.live_at = Stage.LIVE, now, now
                absent.append(worker)
            elif worker.life not in waiting:
                worker.fence_at = fence_at
                absent.append(worker)
        self._summon(absent)

    @property
    def _torn(self) -> bool:
        """Whether one that was let go was cut off before all had left the world that it was in."""
        return not self._let_go.isdisjoint(self._fleet.cut_off_live)

    def _see_torn(self, now: float) -> None:
        """Members that are still in a world with one that was cut off wait for it, though they were to go on."""
        if self._fences or not self._torn:
            return
        self._fences = True
        for worker in self._station.roster.present(self.members):
            if worker.generation and worker.life not in self._station.rendezvous.waiting:
                worker.fence_at = now

    def _summon(self, members: Iterable[Worker]) -> None:
        """Tell members to come: those that were in no world yet to go live, the others to leave the one they are in."""
        now, elsewhere = self._station.now(), list[Worker]()
        for worker in members:
            worker.told_at = now
            if worker.generation or self._station.rendezvous.placed(worker.life):
                elsewhere.append(worker)
            else:
                self._go(worker)
        self._update(elsewhere)

    def _go(self, worker: Worker) -> None:
        station = self._station
        self._rough = self._rough or places(self._by_seniority(self.members))
        rough = self._rough[worker.life]  # Horovod asks for the real one
        env = {**station.hands.go_env(worker), **rough.environment()}
        station.tell(worker, "go", generation=station.generation, env=env)

    def _by_seniority(self, lives: Iterable[Life]) -> list[Life]:
        senior = {name: number for number, name in enumerate(self._fleet.hosts.names)}
        return sorted(lives, key=lambda life: (senior.get(life.seat.host, len(senior)), life))

    def _update(self, workers: Sequence[Worker]) -> None:
        station = self._station
        ends = [by - station.now() for host, by in station.leaves_by.items() if station.roster.on(host)]
        in_s = max(0.0, min(ends)) if ends and min(ends) < math.inf else None
        reason = self._decision.reason
        station.tell_all(workers, "update", generation=station.generation, leave=False, in_s=in_s, reason=reason)

    def tell_ways(self, host: str | None = None) -> None:
        """Tell members, of one host or of all, how to find their peers from the next world on."""
        for worker in self._station.roster.workers.values():
            env = self._station.hands.go_env(worker) if worker.stage is Stage.LIVE else None
            if env and host in (None, worker.seat.host):
                self._station.tell(worker, "env", env=env)

    def deal(self, wanted: tuple[Seat, ...]) -> None:
        """Tell the members of the newest world their ranks, once all of them ask and it may form."""
        station = self._station
        if not self.members or not station.rendezvous.ready:
            return
        processes = station.roster.processes(broken=frozenset(), leaves_by={})
        if not all(life.seat in processes for life in self.members):
            return
        may, loss = self.gate.may_form()
        if not may:
            return
        order = in_order([processes[life.seat] for life in self.members], wanted)
        answers = station.rendezvous.deal(order)
        for rank, life in enumerate(order):
            worker = station.roster.alive(life)
            assert worker is not None
            worker.fence_at = worker.fenced_at = None
            self._name_world(worker, rank, len(order))
        station.answer(answers)
        self._journal(order, self.gate.formed(loss), loss)

    def name_world_again(self, worker: Worker) -> None:
        """Say once more in which world a process has its place, before it is told the place once more."""
        place = self._station.rendezvous.place(worker.life)
        if place is not None:
            self._name_world(worker, place.rank, place.size)

    def _name_world(self, worker: Worker, rank: int, size: int) -> None:
        self._station.tell(worker, "world", generation=self._station.generation, rank=rank, size=size)

    def _journal(self, order: tuple[Life, ...], steps: int | None, loss: Loss | None) -> None:
        after = Counter(life.seat.host for life in order)
        before, self._before = self._before, after
        lost, self._lost = self._lost, Counter()
        self.accounts.changed(
            order[0],
            cause=self._decision.cause,
            reason=self._decision.reason,
            added=[host for host in after if after[host] > before[host]],
            removed=[host for host in before if before[host] > after[host]],
            size=len(order),
            hosts=after,
            failed=lost,
            lost=steps,
            **({} if loss is None else {"lost_because": loss.why}),
        )

    def tell_again(self) -> None:
        """Messages get lost: members that have not come are told once more."""
        self.accounts.look(self._station.now())
        now, waiting = self._station.now(), self._station.rendezvous.waiting
        if self.formed or now < self._late_from:
            return
        self._see_torn(now)
        late: list[Worker] = []
        for worker in self._station.roster.present(self.members):
            if worker.fence_at is not None and (worker.life in waiting or now >= worker.fence_at):
                worker.fence_at = None
                if worker.life not in waiting:
                    self._station.tell(worker, "fence", addresses=None)
                    worker.fenced_at = now
            if worker.fenced_at is not None and now - worker.fenced_at >= STUCK_S:
                self._free(worker)
            told = -math.inf if worker.told_at is None else worker.told_at  # it was cut off, and is back
            if worker.life not in waiting and now - told >= TELL_AGAIN_S:
                late.append(worker)
        self._summon(late)

    def _free(self, worker: Worker) -> None:
        """End a process that nothing else gets out of a world that is lost. It comes back, with its last commit."""
        worker.fenced_at = None
        if worker.waiting and worker.life not in self._station.rendezvous.waiting:
            reason = f"{STUCK_S:g} s after its connections were cut it still waits for a peer that it lost"
            self._station.record("fenced", host=worker.seat.host, slot=worker.seat.slot, reason=reason)
            self._fleet.kill(worker, Cause.PEER_LOST)

    def finish(self) -> None:
        """Some process is done and has ended: members that lost the world with it do what is left among themselves."""
        station = self._station
        alive = station.roster.present(self.members)
        rest = [worker for worker in alive if not worker.done and worker.killed is None]
        if not any(worker.life in station.rendezvous.waiting for worker in rest):
            return
        wanted = tuple(worker.seat for worker in rest)
        decision = decide(station.now(), self.situation(wanted), Limits())  # however few they are
        if decision.members is not None:
            self.change(decision)
        self.deal(wanted)
        self.tell_again()

    @property
    def inherited(self) -> bool:
        """Whether the newest world is one that was taken over."""
        return bool(self.members) and not self._own

    def take_over(self) -> None:
        """Go on with the world that processes of another launcher are in.

        Again when more of them are back: until a world is formed here, those of the same one belong together.
        """
        station = self._station
        if self._own:
            return
        workers = [*station.roster.workers.values(), *(worker for worker, _ in self._fleet.unheard.values())]
        for worker in workers:
            self._found.setdefault(worker.life, worker.generation)
        newest = max((self._found[worker.life] for worker in workers), default=0)
        members = self._by_seniority(life for life, found in self._found.items() if newest and found == newest)
        # Numbers may have been given to worlds that never formed; the next one is beyond all of them.
        station.generation = max(station.generation, newest)
        if not members:
            return
        self._rough = places(members)
        station.rendezvous.adopt(station.generation, self._rough)
        for worker in station.roster.present(members):
            worker.generation = worker.agreed = station.generation
        self.members, self.begun = tuple(members), True
        self._before = Counter(life.seat.host for life in members)
