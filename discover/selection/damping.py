"""What is published of what is true: removals at once, additions after a probe and a moment, losses without a
notice not all at once. Pure.

A pod is known by its UID here: one that was recreated under its name is another host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from discover.common.source import Observation
from discover.selection.objects import Key
from discover.selection.selection import Selection, groups_of
from discover.selection.verdicts import Grade, Verdict
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Departure

T = TypeVar("T")

REMOVAL, ADDITION = "removal", "addition"


@dataclass(frozen=True, slots=True)
class DampingLimits:
    """All in seconds.

    ``settle``: how long additions gather before they are published together. ``damper``: how long hosts stay
    published of which merely nothing is heard, if they are more than half of all (``share``) that were published
    within that time. ``patience``: how long the first publication waits for every probe's first answer.
    """

    settle: float = 0.5
    damper: float = 30.0
    patience: float = 3.0
    share: float = 0.5

    def __post_init__(self) -> None:
        if min(self.settle, self.damper, self.patience) < 0 or not 0 < self.share <= 1:
            raise ValueError("times to hold are at least 0 seconds, and the share of hosts lies between 0 and 1")


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """What the admission probe knows, by :func:`probed`. ``admitted``: who answered once. ``refused``: why others did
    not yet."""

    admitted: Collection[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    everybody: bool = False
    """Nobody is probed: every pod counts as admitted."""

    def admit(self, host: Host) -> bool:
        return self.everybody or probe_key(host) in self.admitted


def probe_key(host: Host) -> str:
    """What the answers of a host are known by: its pod's UID and life. A new container has to listen first."""
    return f"{host.uid}/{host.life}" if host.life else host.uid


@dataclass(frozen=True, slots=True)
class Facts:
    """``seen_at``: when the oldest news in this selection arrived (monotonic seconds); None if it brings none."""

    selection: Selection
    answers: ProbeResults = field(default_factory=ProbeResults)
    seen_at: float | None = None


@dataclass(frozen=True, slots=True)
class DampingState:
    """What is remembered from look to look; mappings are by UID, times in seconds of the monotonic clock.

    ``earlier``: names that an earlier life of the daemon published; they count as published in the first look.
    ``fresh``: since when a host that is not published has been usable. ``gathering``: when the first of those that
    are now being gathered could have been added. ``silent``: since when nothing is heard of hosts that were
    published then, as long as that is not longer ago than the damper holds.
    """

    earlier: frozenset[str] = frozenset()
    published: Mapping[str, Host] = field(default_factory=dict)
    fresh: Mapping[str, float] = field(default_factory=dict)
    gathering: float | None = None
    silent: Mapping[str, float] = field(default_factory=dict)
    damped: bool = False
    looking_since: float | None = None
    begun: bool = False
    observation: Observation | None = None
    """What was shown last; what is the same in the next one is used again."""


@dataclass(frozen=True, slots=True)
class DampingResult:
    """What becomes of one look.

    ``observation`` is None until the first publication is worth making. ``wanted`` are to be probed. ``notes`` say, by
    pod, what a verdict does not: why a usable pod is not published, or an unusable one still is. ``again_at``:
    monotonic seconds at which time alone changes this. ``relist``: the cluster should be listed anew, as what was
    seen may be no more than an outage of its control plane. ``causes``: (``removal`` or ``addition``, when the news
    of it arrived), the oldest of each kind that this look lets through.
    """

    held: DampingState
    observation: Observation | None
    wanted: tuple[Host, ...] = ()
    notes: Mapping[Key, str] = field(default_factory=dict)
    again_at: float | None = None
    relist: bool = False
    causes: tuple[tuple[str, float], ...] = ()


def decide_published(
    now: float, held: DampingState, facts: Facts, *, limits: DampingLimits = DampingLimits()
) -> tuple[DampingResult, str]:
    """Decide what is published of a selection: ``(damping, reason)``. ``now`` is in monotonic seconds."""
    found = _Pods.of(facts, held)
    silent, damped = _dampen(now, held, found, limits=limits)
    named, clashes = _unique(found, damped, held)
    found.addable = {uid: host for uid, host in found.addable.items() if uid in named}
    since = now if held.looking_since is None else held.looking_since
    gathering = _or(held.gathering, now) if found.addable else None
    ripe = gathering is not None and now >= gathering + limits.settle
    begun = held.begun or found.veterans or now >= since + limits.patience
    begun = begun or (not found.undecided(facts.answers) and (ripe or gathering is None))
    # The first publication takes along who is admitted by then: to add them a moment later would be one more change.
    added = found.addable if begun and (ripe or not held.begun) else {}
    waiting = {} if added else {uid: found.keys[uid] for uid in found.addable}
    hosts = {uid: host for uid, host in named.items() if uid not in waiting} if waiting else named
    unchanged = hosts == held.published
    after = DampingState(
        earlier=frozenset() if begun else held.earlier,
        published=held.published if unchanged else hosts,
        fresh={uid: held.fresh.get(uid, _or(facts.seen_at, now)) for uid in found.usable if uid not in hosts},
        gathering=None if added else gathering,
        silent=silent,
        damped=bool(damped),
        looking_since=since,
        begun=begun,
        observation=_observation(hosts, found.leaving, held.observation if unchanged else None) if begun else None,
    )
    ends = {verdict.pod.key: silent[verdict.pod.uid] + limits.damper for verdict in damped}
    kept = {key: f"kept for another {end - now:.0f} s: most hosts fell silent at once" for key, end in ends.items()}
    times = [*ends.values(), _after(after.gathering, limits.settle), None if begun else since + limits.patience]
    damping = DampingResult(
        held=after,
        observation=after.observation,
        wanted=tuple(found.wanted),
        notes={**found.notes, **dict.fromkeys(waiting.values(), "gathering additions"), **kept, **clashes},
        again_at=min((time for time in times if time is not None and time > now), default=None),
        relist=bool(damped) and not held.damped,
        causes=() if unchanged else _causes(held, after, facts),
    )
    return damping, _reason(after, found, damped=len(damped))


def still_holds(now: float, damping: DampingResult, *, of: Facts, facts: Facts) -> bool:
    """Whether :func:`hold` would come to the same again, if ``damping`` is what it came to for the facts ``of``.

    It says so only where that takes no looking: groups of pods in which nobody has changed are the same objects.
    """
    before, groups = of.selection.groups, facts.selection.groups
    return (
        before is not None
        and groups is not None
        and groups.clear is before.clear
        and groups.marked is before.marked
        and facts.answers == of.answers
        and damping.held.begun
        and not damping.held.damped  # how long it is held is told
        and (damping.again_at is None or now < damping.again_at)
    )


@dataclass(slots=True)
class _Pods:
    """The pods by what is to be done with them, by UID but for ``leaving``, ``wanted`` and ``notes``.

    ``kept``: published, and usable still. ``usable``: newcomers that are, and what speaks against adding them;
    ``addable``: those that have answered, with nothing against them. ``silent``: published, and not heard of.
    ``veterans``: something can be said of a host that was published when this life of the daemon began to look.
    """

    keys: Mapping[str, Key]
    kept: dict[str, Host]
    usable: dict[str, str] = field(default_factory=dict)
    addable: dict[str, Host] = field(default_factory=dict)
    silent: dict[str, Verdict] = field(default_factory=dict)
    leaving: list[Verdict] = field(default_factory=list)
    wanted: list[Host] = field(default_factory=list)
    notes: dict[Key, str] = field(default_factory=dict)
    veterans: bool = False

    @classmethod
    def of(cls, facts: Facts, held: DampingState) -> _Pods:
        """Those that are published and clear, nearly all of them, are not looked at one by one."""
        groups = groups_of(facts.selection)
        made = cls(groups.keys, dict(groups.clear))
        fresh = () if groups.clear.keys() == held.published.keys() else groups.clear.keys() - held.published.keys()
        for uid in sorted(fresh, key=groups.keys.__getitem__):
            if not made._known(groups.clear[uid], held):
                made._newcomer(uid, made.kept.pop(uid), "", facts.answers)
        for verdict in groups.marked:
            made._mark(verdict, facts, held)
        return made

    def _known(self, host: Host | None, held: DampingState) -> bool:
        """Whether it was published by an earlier life of the daemon."""
        known = bool(held.earlier) and host is not None and host.name in held.earlier
        self.veterans = self.veterans or known
        return known

    def _mark(self, verdict: Verdict, facts: Facts, held: DampingState) -> None:
        if verdict.grade is Grade.GONE:
            self.leaving.append(verdict)
            return
        uid = verdict.pod.uid
        published = self._known(verdict.host, held) or uid in held.published
        if verdict.grade is Grade.USABLE and published:
            self.kept[uid] = _host(verdict)
        elif verdict.grade is Grade.USABLE:
            self._newcomer(uid, _host(verdict), verdict.advisory, facts.answers)
        elif verdict.grade is Grade.LEAVING:
            self.leaving.append(verdict)
        elif verdict.grade is Grade.ABSENT and (published or uid in held.silent):
            self.silent[uid] = verdict

    def _newcomer(self, uid: str, host: Host, advisory: str, answers: ProbeResults) -> None:
        self.usable[uid] = advisory
        if advisory:
            self.notes[self.keys[uid]] = f"not added: {advisory}"
        elif answers.admit(host):
            self.addable[uid] = host
        else:
            self.wanted.append(host)
            self.notes[self.keys[uid]] = answers.refused.get(probe_key(host), "being probed")

    def undecided(self, answers: ProbeResults) -> bool:
        """Whether a probe has yet to answer for the first time."""
        return any(probe_key(host) not in answers.refused for host in self.wanted)


def _dampen(
    now: float, held: DampingState, found: _Pods, *, limits: DampingLimits
) -> tuple[dict[str, float], list[Verdict]]:
    """Say since when which hosts are silent, and which of them stay published.

    A loss without a notice counts for as long as the damper holds: nodes that one outage took fall silent one by one,
    as their leases run out. So the hosts that were lost before count with those that would be lost now.
    """
    since = {uid: held.silent.get(uid, now) for uid in found.silent}
    # One whose time is over is forgotten with its publication, and so gets no second time.
    silent = {uid: at for uid, at in since.items() if now < at + limits.damper}
    if len(silent) <= limits.share * (len(found.kept) + len(silent)):
        return silent, []
    return silent, [found.silent[uid] for uid in silent if uid not in held.silent or uid in held.published]


def _unique(found: _Pods, damped: Iterable[Verdict], held: DampingState) -> tuple[dict[str, Host], dict[Key, str]]:
    """Hosts by UID, each name once: the first one has it."""
    silent = {each.pod.uid: held.published[each.pod.uid] if each.host is None else each.host for each in damped}
    every = {**found.kept, **silent, **found.addable}
    if every == held.published or len({host.name for host in every.values()}) == len(every):
        return every, {}
    hosts: dict[str, Host] = {}
    owners: dict[str, Key] = {}
    clashes: dict[Key, str] = {}
    for uid in (*sorted(found.kept, key=found.keys.__getitem__), *silent, *found.addable):
        host, key = every[uid], found.keys[uid]
        owner = owners.setdefault(host.name, key)
        if owner == key:
            hosts[uid] = host
        else:
            clashes[key] = f"not added: pod {owner} has the host name {host.name}, too"
    return hosts, clashes


def _observation(hosts: Mapping[str, Host], leaving: Iterable[Verdict], before: Observation | None) -> Observation:
    """``before``: the one with the same hosts, if there was one; what is the same in it is used again."""
    usable = HostSet(tuple(hosts.values())) if before is None else before.hosts
    departing = _departures(leaving, usable)
    return before if before is not None and before.departing == departing else Observation(usable, departing)


def _departures(leaving: Iterable[Verdict], staying: HostSet) -> tuple[Departure, ...]:
    """Those who go, each name once (the one that goes first), and none who stays."""
    departures: dict[str, Departure] = {}
    for verdict in leaving:
        if verdict.host is None or verdict.host.name in staying:
            continue
        known = departures.get(verdict.host.name)
        if known is None or _or(verdict.deadline, float("inf")) < _or(known.deadline, float("inf")):
            departures[verdict.host.name] = Departure(verdict.host.name, verdict.reason, verdict.deadline)
    return tuple(departures.values())


def _causes(before: DampingState, after: DampingState, facts: Facts) -> tuple[tuple[str, float], ...]:
    """What a hold kept back is not counted when it comes through: its time is the hold's."""
    causes = []
    gone, come = (one.published.keys() - other.published.keys() for one, other in ((before, after), (after, before)))
    if facts.seen_at is not None and not gone <= before.silent.keys():
        causes.append((REMOVAL, facts.seen_at))
    since = [at for uid in come if (at := before.fresh.get(uid, facts.seen_at)) is not None]
    if since and after.begun:
        causes.append((ADDITION, min(since)))
    return tuple(causes)


def _reason(after: DampingState, found: _Pods, *, damped: int) -> str:
    parts = [
        (len(found.wanted), "waiting for the probe"),
        (len(found.addable) if after.gathering is not None else 0, "gathering"),
        (sum(map(bool, found.usable.values())), "not added for a warning"),
        (damped, "silent and kept for now"),
        (len(found.leaving), "leaving"),
    ]
    said = [f"{count} {what}" for count, what in parts if count]
    return "; ".join([f"{len(after.published)} published", *said])


def _host(verdict: Verdict) -> Host:
    if verdict.host is None:
        raise ValueError(f"pod {verdict.pod.key} is called usable and has no host")
    return verdict.host


def _or(value: T | None, other: T) -> T:
    return other if value is None else value


def _after(time: float | None, seconds: float) -> float | None:
    return None if time is None else time + seconds
