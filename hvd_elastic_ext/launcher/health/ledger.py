"""Strikes and blocks of slots, pods, hosts and nodes. Pure.

All times are the launcher's monotonic seconds. In JSON they are seconds from
the moment of saving, because the next launcher's clock may start elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from hvd_elastic_ext.core.backoff import pause_after
from hvd_elastic_ext.core.hosts import Host, is_same
from hvd_elastic_ext.core.secrets import external_text
from hvd_elastic_ext.launcher.health.causes import BLAME

if TYPE_CHECKING:
    from hvd_elastic_ext.launcher.health.causes import Cause


DEFAULT_COOLDOWN_S: Final = (10.0, 300.0)
"""Cooldown range when ``--blacklist-cooldown-range`` is absent. Stock Horovod blocks for ever."""
DECAY: Final = 10
"""A strike is taken back after this many times the last cooldown without a fault."""
SLOTS_WINDOW_S: Final = 30.0
"""Faults of different slots of a host within this time count as faults of the host."""
SEVERAL_SLOTS: Final = 2
"""How many slots that needs. Two devices rarely fail independently within half a minute."""
SWEEP_S: Final = 60.0
"""Longest time for which records without effect are kept."""
NODE_WINDOW_S: Final = 3600.0
NODE_FAULTS: Final = 3
"""This many faults on one node within :data:`NODE_WINDOW_S`, in any pods, count as faults of the node."""
MAX_FAULTS: Final = 1000
"""Most faults that are remembered: no job survives more within :data:`NODE_WINDOW_S`."""
_MOST_STRIKES: Final = 64
Commit = tuple[int, int, int]
"""Incarnation, generation and number of a commit. Greater is newer."""


def cooldown_s(failures: int, limits: tuple[float, float]) -> float:
    """Seconds of the block after the ``failures``-th failure (from 1): the lower limit, doubled up to the upper one.

    Horovod documents ``--blacklist-cooldown-range`` like this. (Its code starts at two to three times the lower limit.)
    """
    if failures < 1:
        raise ValueError("a cooldown follows a failure")
    low, high = limits
    return pause_after(failures, first=low, longest=high)


class Subject(NamedTuple):
    """What is blamed. A recreated pod and a restarted container are other subjects."""

    kind: str
    """``slot``, ``pod``, ``host`` or ``node``."""
    name: str
    """Of the host or node."""
    uid: str = ""
    """Of the pod, if known."""
    slot: int | None = None
    life: str = ""
    """Of the pod's container, if known."""

    def __str__(self) -> str:
        return f"slot {self.slot} of {self.name}" if self.kind == "slot" else f"{self.kind} {self.name}"

    def concerns(self, host: Host, slot: int | None = None) -> bool:
        """Whether a block of this subject keeps ``slot`` of ``host`` (None: the whole host) from work."""
        if self.kind == "node":
            return bool(host.node) and host.node == self.name
        same = self.name == host.name and is_same(self.uid, host.uid) and is_same(self.life, host.life)
        return same and (self.kind != "slot" or self.slot == slot)

    def whole(self) -> Subject:
        """The pod or host that a slot is in; itself for all others."""
        return _host_subject(self.name, self.uid, self.life) if self.kind == "slot" else self


def _host_subject(name: str, uid: str, life: str) -> Subject:
    return Subject("pod", name, uid, life=life) if uid else Subject("host", name)


def subject_of(cause: Cause, host: Host, slot: int | None = None) -> Subject:
    """What ``cause`` blames, by the table :data:`BLAME`. Raises ``ValueError`` for a cause without blame."""
    if not cause.fault:
        raise ValueError(f"{cause.value} is not a fault")
    if slot is not None and BLAME[cause].points_at == "slot":
        return Subject("slot", host.name, host.uid, slot, host.life)
    return _host_subject(host.name, host.uid, host.life)


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: subject, cause, time (mono), and node if known.

    ``unproven_s``: seconds before it without any work; they do not count as time without a fault. ``detail``: details,
    in one line. ``longest``: it comes again at each start, so its cooldown is the longest one, and it says nothing
    about other slots. ``apart``: it counts for its own subject only, and neither towards its host nor its node.
    """

    subject: Subject
    cause: Cause
    at: float
    node: str = ""
    unproven_s: float = 0.0
    detail: str = ""
    longest: bool = False
    apart: bool = False

    @classmethod
    def of(
        cls,
        cause: Cause,
        host: Host,
        slot: int | None,
        *,
        at: float,
        unproven_s: float = 0.0,
        detail: str = "",
        longest: bool = False,
        apart: bool = False,
    ) -> Strike | None:
        """The strike for ``cause``; None if it is not a fault."""
        if not cause.fault:
            return None
        return cls(subject_of(cause, host, slot), cause, at, host.node, unproven_s, detail, longest, apart)


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """Strikes and blocks of one subject."""

    strikes: int = 0
    """Those that led to the last cooldown."""
    cooldown: float = 0.0
    """How long the last cooldown is."""
    until: float = 0.0
    """When it ends (mono)."""
    cause: Cause | None = None
    lifted: bool = False
    held: bool = False
    """It is blocked by hand, or drained; that is not a strike."""
    held_until: float | None = None
    """When that block ends (mono); None: never."""
    held_since: float | None = None
    """When that block began (mono); None if a launcher before this version made it."""
    reason: str = ""
    drained: bool = False
    """The launcher drained it, and may lift that when no other host is left."""
    detail: str = ""
    """Details of the last fault, in one line."""

    @property
    def why(self) -> str:
        """The cause of the last fault, and its details."""
        return "" if self.cause is None else self.cause.with_detail(self.detail)

    @property
    def how_held(self) -> str:
        """``drained`` or ``blocked by hand``, with the reason if one was given. Only valid while it is held."""
        return ("drained" if self.drained else "blocked by hand") + (f": {self.reason}" if self.reason else "")

    def strikes_left(self, now: float) -> int:
        """Strikes that have not decayed; decay starts at the end of the cooldown."""
        if not self.strikes or now <= self.until or self.cooldown <= 0:
            return self.strikes
        return max(0, self.strikes - int((now - self.until) / (DECAY * self.cooldown)))

    def in_cooldown(self, now: float) -> bool:
        """Whether its cooldown lasts at ``now`` (mono), and was not lifted."""
        return self.strikes > 0 and not self.lifted and now < self.until

    def held_back(self, now: float) -> bool:
        """Whether a block by hand, or a drain, lasts at ``now`` (mono)."""
        return self.held and (self.held_until is None or now < self.held_until)

    def blocked(self, now: float) -> bool:
        """Whether a cooldown, a block by hand or a drain lasts at ``now`` (mono)."""
        return self.in_cooldown(now) or self.held_back(now)

    def ends(self, now: float) -> float | None:
        """When a present block ends; None is never."""
        if self.held_back(now) and self.held_until is None:
            return None
        return max(
            self.until if self.in_cooldown(now) else now,
            self.held_until if self.held_back(now) and self.held_until else now,
        )

    def since(self, now: float) -> float | None:
        """When its present block began; None if that is unknown."""
        begins = [self.until - self.cooldown] if self.in_cooldown(now) else []
        if self.held_back(now) and self.held_since is not None:
            begins.append(self.held_since)
        return min(begins, default=None)

    def empty(self, now: float) -> bool:
        """Whether it has no effect at ``now`` (mono): no block lasts, and all strikes have decayed."""
        return not self.blocked(now) and self.strikes_left(now) == 0

    def struck(
        self,
        now: float,
        cause: Cause,
        limits: tuple[float, float],
        *,
        unproven_s: float = 0.0,
        detail: str = "",
        longest: bool = False,
    ) -> HealthRecord:
        """Add one strike, with a cooldown from ``now`` (mono) on.

        ``limits``: shortest and longest cooldown in seconds. ``unproven_s``, ``detail``, ``longest``: as in
        :class:`Strike`.
        """
        strikes = self.strikes_left(now - unproven_s) + 1
        cooldown = limits[1] if longest else cooldown_s(strikes, limits)
        if cooldown >= limits[1]:
            # More strikes than the longest cooldown needs would only take hours longer to decay.
            strikes = next((n for n in range(1, _MOST_STRIKES) if cooldown_s(n, limits) >= limits[1]), strikes)
        until = now + cooldown
        return replace(self, strikes=strikes, cooldown=cooldown, until=until, cause=cause, lifted=False, detail=detail)

    def taken_back(self) -> HealthRecord:
        """Take one strike back, and end the block: another subject is to blame."""
        return replace(self, strikes=max(0, self.strikes - 1), lifted=True)


class BlockStatus(NamedTuple):
    """``until`` is mono; None if not blocked, or blocked without an end. ``since`` is mono; None if it is unknown."""

    blocked: bool
    reason: str
    until: float | None = None
    since: float | None = None


FREE: Final = BlockStatus(False, "no strikes and no block")


class LiftedBlock(NamedTuple):
    """``host`` is None if no block can be lifted."""

    ledger: HealthLedger
    host: Host | None
    reason: str


@dataclass(frozen=True, slots=True)
class HealthLedger:
    """All records; every change returns a new ledger. ``faults`` are those that still count towards host or node."""

    records: Mapping[Subject, HealthRecord] = field(default_factory=dict)
    faults: tuple[Strike, ...] = ()
    swept_at: float = field(default=float("-inf"), compare=False, repr=False)
    """When records without effect were dropped last (mono): not at each fault, since thousands may come at once."""

    # --- what happened

    def struck(self, now: float, strike: Strike, limits: tuple[float, float]) -> HealthLedger:
        """The ledger after one more fault; a cause without blame changes nothing.

        A blocked subject gets no strike: processes that fail together are one failure. Slots of a host that fail within
        :data:`SLOTS_WINDOW_S` are the host's failure, unless a slot has failed alone before.
        """
        if not strike.cause.fault or self._covered(now, strike):
            return self
        recent = tuple(f for f in self.faults if now - f.at <= NODE_WINDOW_S)
        faults = recent if strike.apart else (*recent, strike)[-MAX_FAULTS:]
        records, swept_at = dict(self.records), self.swept_at
        if now - swept_at > SWEEP_S:
            records, swept_at = {key: each for key, each in records.items() if not each.empty(now)}, now
        subject, detail = strike.subject, strike.detail
        together = {slot for slot in _slots_failing(now, faults, subject) if not self._fails_alone(now, slot, subject)}
        together = together if len(together) >= SEVERAL_SLOTS and not (strike.longest or strike.apart) else set()
        if together:
            for slot in together:
                if (record := records.get(slot)) is not None:
                    records[slot] = record.taken_back()
            detail = _last_of(f"{len(together)} slots failed within {SLOTS_WINDOW_S:g} s", strike)
            subject = subject.whole()
            faults = (*(f for f in faults if f.subject not in together), replace(strike, subject=subject))
        record = self.records.get(subject, HealthRecord()) if subject not in records else records[subject]
        records[subject] = record.struck(
            now, strike.cause, limits, unproven_s=strike.unproven_s, detail=detail, longest=strike.longest
        )
        if strike.node and not strike.apart and _node_faults(faults, strike.node) >= NODE_FAULTS:
            node = Subject("node", strike.node)
            detail = _last_of(f"{NODE_FAULTS} faults or more within an hour", strike)
            records[node] = records.get(node, HealthRecord()).struck(now, strike.cause, limits, detail=detail)
        return HealthLedger(records, faults, swept_at)

    def lifted(self, subject: Subject) -> HealthLedger:
        """End the cooldown of a subject. Strikes stay, and so does a block by hand."""
        record = self.records.get(subject)
        if record is None:
            return self
        return self._with(subject, replace(record, lifted=True, held=record.held and not record.drained))

    def cleared(self, subject: Subject) -> HealthLedger:
        """Forget everything about a subject, a block by hand too, and the faults that counted towards it."""
        records = {key: record for key, record in self.records.items() if key != subject}
        faults = tuple(f for f in self.faults if subject not in (f.subject, f.subject.whole(), Subject("node", f.node)))
        return HealthLedger(records, faults)

    def block(
        self, subject: Subject, until: float | None, reason: str, *, drained: bool = False, at: float | None = None
    ) -> HealthLedger:
        """Block by hand, or drain, until ``until`` (mono; None: until cleared), from ``at`` on. It is not a strike."""
        record = self.records.get(subject, HealthRecord())
        held = replace(record, held=True, held_until=until, held_since=at, reason=reason, drained=drained)
        return self._with(subject, held)

    # --- what follows

    def blocked(self, now: float, host: Host, slot: int | None = None) -> BlockStatus:
        """Whether ``slot`` of ``host`` is blocked, and why; None: the whole host, or each of its slots.

        Of several blocks the one that ends last counts.
        """
        found = self._status(now, host, slot)
        if found.blocked or slot is not None:
            return found
        slots = [self._status(now, host, number) for number in range(host.slots)]
        if not all(status.blocked for status in slots):
            return FREE
        soonest = min(slots, key=_end)
        if host.slots == 1:
            return soonest
        return soonest._replace(reason=f"each of its {host.slots} slots is blocked; {soonest.reason}")

    def usable_slots(self, now: float, host: Host) -> tuple[int, ...]:
        """Numbers of the slots that may work; slots keep their numbers."""
        if not self.blocks(now):
            return tuple(range(host.slots))
        return tuple(slot for slot in range(host.slots) if not self._status(now, host, slot).blocked)

    def blocks(self, now: float) -> bool:
        """Whether anything is blocked."""
        return any(record.blocked(now) for record in self.records.values())

    def usable(self, now: float, hosts: Iterable[Host]) -> list[tuple[Host, tuple[int, ...]]]:
        """Each host's :meth:`usable_slots`. There may be thousands."""
        return [
            (host, _all(host.slots) if about is None else about.usable_slots(now, host))
            for host, about in self.by_host(hosts)
        ]

    def by_host(self, hosts: Iterable[Host]) -> Iterator[tuple[Host, HealthLedger | None]]:
        """Each host with the part of the ledger that may concern it; None for nothing.

        So a caller that asks about each host does not read the records of all.
        """
        by_name: defaultdict[str, dict[Subject, HealthRecord]] = defaultdict(dict)
        for subject, record in self.records.items():
            by_name[subject.name][subject] = record
        for host in hosts:
            found = [by_name[name] for name in dict.fromkeys((host.name, host.node)) if name in by_name]
            yield host, HealthLedger({key: record for part in found for key, record in part.items()}) if found else None

    def next_release(self, now: float) -> float | None:
        """When the next block ends; None if none does by itself."""
        ends = (record.ends(now) for record in self.records.values() if record.blocked(now))
        return min((end for end in ends if end is not None), default=None)

    def subjects(self, host: Host) -> tuple[Subject, ...]:
        """The recorded subjects of a host: itself, its pod, its node, its slots."""
        return tuple(s for s in self.records if s.concerns(host, s.slot))

    def lift_one_block(self, now: float, candidates: Iterable[tuple[Host, Commit | None]]) -> LiftedBlock:
        """Choose the host with the block to lift when no host may work.

        ``candidates``: blocked hosts and the newest commit of each (None: none). Order: newest commit, fewest strikes,
        earliest end of the block, order given. A block by hand is never lifted.
        """
        best: Host | None = None
        best_rank: tuple[Commit, int, float] | None = None
        for host, commit in candidates:
            mine = self.subjects(host)
            if any(self.records[s].held_back(now) for s in mine if s.kind != "slot"):
                continue
            strikes = sum(self.records[s].strikes_left(now) for s in mine)
            rank = (commit or (-1, -1, -1), -strikes, -_end(self.blocked(now, host)))
            if best_rank is None or rank > best_rank:
                best, best_rank = host, rank
        if best is None or best_rank is None:
            return LiftedBlock(self, None, "all hosts left are blocked by hand")
        ledger = self
        for subject in self.subjects(best):
            ledger = ledger.lifted(subject)
        has = "holds the newest commit" if best_rank[0] > (-1, -1, -1) else "has the fewest strikes"
        return LiftedBlock(ledger, best, f"no other host may work, and {best.name} {has}")

    # --- inside

    def _with(self, subject: Subject, record: HealthRecord) -> HealthLedger:
        return replace(self, records={**self.records, subject: record})

    def _status(self, now: float, host: Host, slot: int | None) -> BlockStatus:
        mine = [
            _status_of(now, subject, record)
            for subject, record in self.records.items()
            if record.blocked(now) and subject.concerns(host, slot) and (slot is not None or subject.kind != "slot")
        ]
        return max(mine, key=_end, default=FREE)

    def _fails_alone(self, now: float, slot: Subject, struck: Subject) -> bool:
        """Whether a slot had failed before; the present fault is not in the record of the slot that is struck yet."""
        record = self.records.get(slot)
        return record is not None and record.strikes_left(now) >= (1 if slot == struck else 2)

    def _covered(self, now: float, strike: Strike) -> bool:
        """Whether the subject, its host or its node is in a cooldown already."""
        covers = {strike.subject, strike.subject.whole(), Subject("node", strike.node)}
        return any((record := self.records.get(s)) is not None and record.in_cooldown(now) for s in covers)


@cache
def _all(slots: int) -> tuple[int, ...]:
    return tuple(range(slots))


def _status_of(now: float, subject: Subject, record: HealthRecord) -> BlockStatus:
    if record.held_back(now):
        return BlockStatus(True, f"{subject} is {record.how_held}", record.ends(now), record.since(now))
    count = record.strikes
    often = "" if count == 1 else f" ({count} strikes)"
    return BlockStatus(True, f"{subject}: {record.why}{often}", record.ends(now), record.since(now))


def _last_of(what: str, strike: Strike) -> str:
    """One text for several faults, with the details of the last one; empty if it has none."""
    words = strike.detail.removeprefix(f"{strike.cause}: ")
    return words and external_text(f"{what}, the last: {strike.subject}: {words}")


def _end(status: BlockStatus) -> float:
    if not status.blocked:
        return float("-inf")
    return float("inf") if status.until is None else status.until


def _slots_failing(now: float, faults: Iterable[Strike], subject: Subject) -> set[Subject]:
    """The slots that have failed about when ``subject`` did, itself included; none if that is not a slot."""
    if subject.kind != "slot":
        return set()
    host = subject.whole()
    recent = (f.subject for f in faults if f.subject.name == subject.name and now - f.at <= SLOTS_WINDOW_S)
    return {each for each in recent if each.kind == "slot" and each.whole() == host}


def _node_faults(faults: Iterable[Strike], node: str) -> int:
    """Faults that count against the node; repeated faults of one slot count once."""
    on_node = [f for f in faults if f.node == node]
    slots = {f.subject for f in on_node if f.subject.kind == "slot"}
    return len(slots) + sum(f.subject.kind != "slot" for f in on_node)
