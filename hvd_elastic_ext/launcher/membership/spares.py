"""Spares: processes that are parked beside the training, in seats that the world does not need now.

A spare is started as a newcomer is, and waits for no world: it interrupts nobody. When a member is lost, the seat of a
spare that is ready is wanted in its place (:func:`~hvd_elastic_ext.launcher.membership.chosen_hosts.seats` prefers
seats with ready processes), so the spare is a member of the very next world. Which seats have spares is decided by
:func:`choose`; everything else about them is what holds for any newcomer: strikes, cooldowns, the time to get ready,
results of training calls.

A host in use may have *extra seats*, numbered after its slots. A spare there stands for the slots of its host: for any
of them or, where slots have devices, for one, whose device it uses. :func:`offered` says which seats of such a host may
be in a world: never more than it has slots. So an extra seat is used only in place of a slot.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.hosts import MAX_SLOTS, Host
from hvd_elastic_ext.launcher.driver import orders
from hvd_elastic_ext.launcher.health.causes import Cause
from hvd_elastic_ext.launcher.membership.devices import named
from hvd_elastic_ext.launcher.membership.rendezvous import Seat
from hvd_elastic_ext.launcher.membership.world_change import Stage

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.driver.job import JobState
    from hvd_elastic_ext.launcher.driver.roster import Worker
    from hvd_elastic_ext.launcher.health.ledger import HealthLedger
    from hvd_elastic_ext.launcher.membership.world_change import WorldLimits


@dataclass(frozen=True, slots=True)
class SpareLimits:
    """What ``--spares`` says. Without a number: on hosts that no world needs, at most as many as the world has
    processes."""

    number: int | None = None
    """Most spares, also in slots that the world leaves free on its own hosts."""
    percent: float | None = None
    """The same, as a share of the world's size, rounded up."""

    @property
    def asked_for(self) -> bool:
        """Whether spares may be in free slots of hosts that train."""
        return self.number is not None or self.percent is not None

    def most(self, size: int) -> int:
        """Most spares beside a world of ``size`` processes."""
        if self.number is not None:
            return self.number
        return size if self.percent is None else math.ceil(self.percent * size / 100)


BY_THEMSELVES: Final = "auto"
"""Value of ``--spares`` for spares on surplus hosts only."""
ON_SURPLUS_HOSTS: Final = SpareLimits()
"""The same: what holds without the option."""
MOST_PERCENT: Final = 1000
"""The largest share that ``--spares`` may be."""


def parse_spares(text: str) -> SpareLimits:
    """Read ``--spares``: a number, ``N%`` of the world's size, or ``auto``. Raises :class:`UsageError`, one line."""
    word = text.strip()
    digits = word.removesuffix("%")
    if word == BY_THEMSELVES:
        return ON_SURPLUS_HOSTS
    if not (digits.isascii() and digits.isdecimal()):
        raise UsageError(f"--spares {text!r}: write a number, such as 1 or 0, a share such as 10%, or {BY_THEMSELVES}")
    share = word.endswith("%")
    if len(digits.lstrip("0")) > 6 or int(digits) > (MOST_PERCENT if share else MAX_SLOTS):  # int() takes 4300 digits
        raise UsageError(f"--spares is too large; write {MAX_SLOTS} at most, or {MOST_PERCENT}%")
    return SpareLimits(percent=float(digits)) if share else SpareLimits(number=int(digits))


# --- extra seats of a host in use


def slot_of(number: int, slots: int) -> int:
    """The slot for which a seat stands on a host of so many ``slots`` whose slots have devices: its own, or that of an
    extra seat."""
    return number if number < slots or not slots else (number - slots) % slots


def bars(cause: Cause | None, detail: str, *, held: bool, devices: bool) -> str | None:
    """Why no spare of the same host may take the place of a slot that is blocked; None if one may.

    ``cause`` and ``detail``: of the slot's last fault. ``held``: it is blocked by hand, or drained. ``devices``: slots
    have devices, so that the spare would use the same one.
    """
    if held:
        return "it is blocked by hand"
    if cause is Cause.MEMORY:
        return "one process fewer is what relieves the memory"
    if "starts without a step" in detail:
        return "it fails in the same way at each start"
    if devices and cause is Cause.CRASHED and "SIGKILL" not in detail:
        return "its device may be at fault"
    return None


class HostSeats(NamedTuple):
    """One host, for :func:`offered`. Seats are numbers: slots, and extra seats after them."""

    slots: int
    usable: Sequence[int]
    """Slots that may work."""
    taken: Mapping[int, Stage]
    """Seats with a process that may stay, and its stage."""
    blocked: Collection[int] = ()
    """Extra seats that may not work."""
    barred: Collection[int] = ()
    """Seats that are blocked, and in whose place no spare may stand: see :func:`bars`."""
    devices: bool = False
    """Its slots have devices."""
    stands: Mapping[int, int] = MappingProxyType({})
    """The slots whose devices processes were started with, of seats for which :func:`slot_of` names another one now:
    their host had another number of slots then."""
    exchanged: Collection[int] = ()
    """Of these seats, slots whose members give way: see :func:`exchanges`."""

    def slot(self, number: int) -> int:
        """The slot whose device the process in a seat has, or would have."""
        return self.stands.get(number, slot_of(number, self.slots))


NEARNESS: Final[Mapping[Stage | None, int]] = {Stage.LIVE: 0, Stage.PARKED: 1, Stage.BOOTING: 2, None: 3}
"""How near to the world the process of a seat is: the lowest first."""


def offered(host: HostSeats) -> tuple[int, ...]:
    """The seats of a host that a world may have: as many as it has slots, but for those that are ``barred``.

    An extra seat is one of them only if it has a process already: none is started there in place of a blocked slot. A
    member stays whatever happens to a spare, and a spare that has failed keeps no slot from work.
    """
    extra = [number for number in host.taken if number >= host.slots and number not in host.blocked]
    if not extra and not host.stands:
        return tuple(host.usable)
    every = sorted([*host.usable, *extra], key=lambda number: (_nearness(host, number), number))
    if not host.devices:
        trains = sum(host.taken.get(number) is Stage.LIVE for number in every)
        barred_slots = sum(number < host.slots for number in host.barred)
        return tuple(sorted(every[: min(host.slots, max(trains, host.slots - barred_slots))]))
    barred = {slot_of(number, host.slots) for number in host.barred}
    found = dict[int, int]()
    for number in every:
        slot = host.slot(number)
        if slot == number or slot not in barred or host.taken.get(number) is Stage.LIVE:
            found.setdefault(slot, number)
    return tuple(sorted([*found.values()][: host.slots]))


def _nearness(host: HostSeats, number: int) -> float:
    """How near to the world the process of a seat is. One that gives way comes after a ready process of the slot whose
    device it has.
    """
    gives_way = number in host.exchanged and host.taken.get(host.slot(number)) is Stage.PARKED
    return NEARNESS[Stage.PARKED] + 0.5 if gives_way else NEARNESS[host.taken.get(number)]


def exchanges(hosts: Sequence[HostSeats], limits: WorldLimits) -> list[tuple[int, int]]:
    """Members that should give way, as index of the host and seat: each has the device of another slot than its seat's,
    which is a slot of its own now. So that slot does not work, but would if a process in the other one took over its
    device. Only as many as make the world larger.
    """
    found = [
        (index, number)
        for index, host in enumerate(hosts)
        for number, slot in sorted(host.stands.items())
        if host.devices and number < host.slots and host.taken.get(number) is Stage.LIVE
        if number in host.usable and slot in host.usable and host.taken.get(slot) is not Stage.LIVE
    ]
    if not found:
        return found
    now = sum(len(offered(host)) for host in hosts)
    sizes = [limits.size(now + more, begun=True) for more in range(len(found) + 1)]
    return found[: sizes.index(sizes[-1])]


def extra_seats(hosts: Sequence[HostSeats], most: int) -> list[tuple[int, int]]:
    """Extra seats in which a spare may be started, as index of the host and number: one on each host before a second
    one, on hosts with more slots first. ``most``: how many are needed at most.

    Not on a host with a blocked slot: a process that is started after a fault does not count as a spare for it.
    """
    sound = [index for index, host in enumerate(hosts) if len(host.usable) == host.slots]
    sound.sort(key=lambda index: -hosts[index].slots)
    seats = ((index, hosts[index].slots + more) for more in range(min(most, MAX_SLOTS)) for index in sound)
    # Agents take no number from MAX_SLOTS on.
    free = ((index, number) for index, number in seats if number < MAX_SLOTS and number not in hosts[index].blocked)
    return list(islice(free, most))


# --- which seats have a spare


class SpareFacts(NamedTuple):
    """The input of :func:`choose`."""

    wanted: Sequence[Seat]
    """Seats that the world should have."""
    surplus: Sequence[Seat]
    """Seats that may work and are not wanted, the most senior first. A blocked slot, or one of a host that is about to
    go, is not among them: no spare stands in it."""
    taken: Mapping[Seat, Stage]
    """Seats with a process that may stay, and its stage."""
    before: Collection[Seat]
    """Seats that had a spare at the last look."""
    due: Collection[Seat]
    """Surplus slots whose devices members of other seats have, which give way to a process there."""
    quiet: bool
    """A world trains, and nothing changes: only then processes are started that it does not need."""


def choose(facts: SpareFacts, limits: SpareLimits) -> tuple[Seat, ...]:
    """The seats that have a spare, or should have one.

    A process that is there comes before one that would have to be started, a ready one before one that starts, and a
    senior host before a junior one. A spare stays when the rest of its host begins to train. Those that are ``due`` are
    beside as many as there may be: they will be members.
    """
    hosts = {seat.host for seat in facts.wanted}
    offers = [
        seat
        for seat in facts.surplus
        if (facts.quiet or seat in facts.taken)
        and (limits.asked_for or seat.host not in hosts or (seat in facts.before and seat in facts.taken))
    ]
    offers = [seat for seat in offers if facts.taken.get(seat) is not Stage.LIVE]  # a former member; it ends
    offers.sort(key=lambda seat: (seat not in facts.due, NEARNESS[facts.taken.get(seat)]))
    return tuple(offers[: limits.most(len(facts.wanted)) + sum(seat in facts.due for seat in offers)])


# --- what follows from the state


class Counts(NamedTuple):
    """Spares of a job: those that are ready, and those that start. A seat in which none may start yet has neither."""

    ready: int
    starting: int

    def __str__(self) -> str:
        parts = [f"{self.ready} ready"] * bool(self.ready) + [f"{self.starting} starting"] * bool(self.starting)
        return ", ".join(parts)


def counted(job: JobState) -> Counts:
    """How many there are now."""
    return Counts(len(ready(job)), len(_starting(job)))


def ready(job: JobState) -> list[Seat]:
    """The seats of those that are ready."""
    taken = job.roster.taken() if job.spares else {}
    return [seat for seat in job.spares if taken.get(seat) is Stage.PARKED]


def _starting(job: JobState) -> list[Seat]:
    """The seats of those that start, and where nothing hinders that one does: not those with a process that is ending,
    nor those where the last one has left so lately that the next one has to wait.
    """
    taken, workers, delays = job.roster.taken() if job.spares else {}, job.roster.workers, job.fleet.restart_delays
    return [
        seat
        for seat in job.spares
        if taken.get(seat) is Stage.BOOTING or (seat not in workers and delays.over(seat, job.now))
    ]


def by_host(job: JobState) -> dict[str, Counts]:
    """The same for each host that has some."""
    are_ready, start = (Counter(seat.host for seat in seats) for seats in (ready(job), _starting(job)))
    return {host: Counts(are_ready[host], start[host]) for host in are_ready | start}


def is_spare(job: JobState, worker: Worker) -> bool:
    """Whether a process is in the seat of a spare."""
    return worker.seat in job.spares


Usable = Sequence[tuple[Host, Sequence[int]]]
"""Hosts with slots, or other seats, that may be used."""


def offers(job: JobState, usable: Usable) -> Usable:
    """Each host's seats that a world may have: its ``usable`` slots, or spares in place of some of them.

    Also without spares, a rank stays that was one under an earlier launcher, and none is started on its device.
    """
    asked_for = job.options.spares.asked_for
    if not job.in_place or not (asked_for or any(_stands_in(job, each) for each in job.roster.workers.values())):
        return usable
    seats = _with_exchanges(job, usable) if asked_for else _host_seats(job, usable)
    return [(host, offered(each)) for (host, _), each in zip(usable, seats, strict=True)]


def end_misplaced(job: JobState) -> None:
    """End processes outside of a world whose seat stands for another slot than at their start, since their host has
    another number of slots now: they have the device of that slot, and its local rank.
    """
    members = frozenset(job.world.members)
    for worker in job.roster.workers.values():
        waits = worker.stage is not Stage.LIVE and worker.leaving is None and worker.killed is None
        if waits and _is_misplaced(job, worker) and worker.life not in members and not worker.done:
            orders.remove(job, worker, "its host has another number of slots now")


def _stands_in(job: JobState, worker: Worker) -> bool:
    """Whether a process is in an extra seat, or has the device of another slot than its own."""
    return worker.seat.slot >= worker.host.slots or _is_misplaced(job, worker)


def _is_misplaced(job: JobState, worker: Worker) -> bool:
    host = job.fleet.hosts.get(worker.seat.host)
    if host is None or worker.stands_for is None:
        return False
    return slot_of(worker.seat.slot, host.slots) != worker.stands_for


def find(job: JobState, usable: Usable) -> None:
    """Note which seats have spares now. A spare whose seat is wanted is called in: it is ready since now.

    Not under engines that start other processes for each world: no process could be ready before.
    """
    before, job.spares = job.spares, ()
    surplus, due = _surplus(job, usable) if job.in_place else ([], ())
    if surplus:
        facts = SpareFacts(job.wanted, surplus, job.roster.taken(), before, due, _quiet(job))
        job.spares = choose(facts, job.options.spares)
    workers, wanted = job.roster.workers, frozenset(job.wanted) if before else ()
    for seat in job.spares:
        if (worker := workers.get(seat)) is not None:
            worker.spare = True
    for seat in before:
        if seat in wanted and (worker := workers.get(seat)) is not None and worker.stage is not Stage.LIVE:
            worker.spare = worker.stage is Stage.PARKED  # one that is not ready yet is as any other newcomer
            worker.since = job.now if worker.spare else worker.since


def _surplus(job: JobState, usable: Usable) -> tuple[list[Seat], frozenset[Seat]]:
    """Seats that may work and are not wanted: free slots, extra seats with a process, and those that may get one. And
    which of them are due: see :class:`SpareFacts`.
    """
    limits, wanted = job.options.spares, frozenset(job.wanted)
    if not limits.asked_for and sum(len(slots) for _, slots in usable) <= len(wanted):
        return [], frozenset()  # the usual case
    due = frozenset[Seat]()
    found = [Seat(host.name, slot) for host, slots in usable for slot in slots]
    if limits.asked_for:
        seats = _with_exchanges(job, usable)
        for (host, _), each in zip(usable, seats, strict=True):
            due |= {Seat(host.name, each.slot(number)) for number in each.exchanged}
            extra = (number for number in sorted(each.taken) if number >= host.slots and number not in each.blocked)
            found += [Seat(host.name, number) for number in extra]
        in_use = {seat.host for seat in wanted}
        hosts = [(host, each) for (host, _), each in zip(usable, seats, strict=True) if host.name in in_use]
        free = extra_seats([each for _, each in hosts], limits.most(len(wanted)))
        found += [Seat(hosts[index][0].name, number) for index, number in free]
    return [seat for seat in dict.fromkeys(found) if seat not in wanted], due


def _with_exchanges(job: JobState, usable: Usable) -> list[HostSeats]:
    """The hosts, as :func:`offered` sees them, with the members that give way."""
    hosts = _host_seats(job, usable)
    gone = exchanges(hosts, job.options.limits)
    if not gone:
        return hosts
    return [
        host._replace(exchanged=frozenset(number for at, number in gone if at == index))
        for index, host in enumerate(hosts)
    ]


def _host_seats(job: JobState, usable: Usable) -> list[HostSeats]:
    """The hosts, as :func:`offered` sees them, without members that give way."""
    taken: dict[str, dict[int, Stage]] = {}
    for seat, stage in job.roster.taken().items():
        taken.setdefault(seat.host, {})[seat.slot] = stage
    stands: dict[str, dict[int, int]] = {}
    for seat, worker in job.roster.workers.items():
        if worker.stands_for is not None and _is_misplaced(job, worker):
            stands.setdefault(seat.host, {})[seat.slot] = worker.stands_for
    found = []
    for (host, slots), (_, about) in zip(usable, job.faults.ledger.by_host([host for host, _ in usable]), strict=True):
        here = taken.get(host.name, {})
        devices = job.options.names_devices or bool(named(str(job.roster.facts_of(host.name).get("devices", ""))))
        blocked, barred = _blocked(job.now, host, about, here, devices)
        stand = stands.get(host.name, {})
        found.append(HostSeats(host.slots, slots, here, blocked, barred, devices=devices, stands=stand))
    return found


def _blocked(
    now: float, host: Host, about: HealthLedger | None, taken: Mapping[int, Stage], devices: bool
) -> tuple[frozenset[int], frozenset[int]]:
    """Extra seats that may not work, and seats in whose place no spare may stand."""
    if about is None:
        return frozenset(), frozenset()
    blocked, barred = set[int](), set[int]()
    for subject, record in about.records.items():
        if not record.blocked(now):
            continue
        if subject.kind != "slot":
            if subject.concerns(host):
                blocked |= taken.keys()  # the whole host
        elif subject.slot is not None and subject.concerns(host, subject.slot):
            blocked.add(subject.slot)
            if bars(record.cause, record.why, held=record.held_back(now), devices=devices):
                barred.add(subject.slot)
    return frozenset(number for number in blocked if number >= host.slots), frozenset(barred)


def _quiet(job: JobState) -> bool:
    """Whether a world trains in an elastic loop, and goes on: a program without one would run in a spare, too."""
    if not (job.steady and job.settled and job.loopless.loops) or job.ending or job.before_exit.why is not None:
        return False
    return not any(worker.done for worker in job.roster.present(job.world.members))
