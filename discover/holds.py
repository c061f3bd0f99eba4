"""What is published of what is true: removals at once, additions after a probe and a moment, losses without a
notice not all at once. Pure.

A pod is known by its UID here: one that was recreated under its name is another host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from discover.cluster import Key
from discover.selection import Grade, Selection, Verdict
from discover.source import Sight
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Departure

T = TypeVar("T")

REMOVAL, ADDITION = "removal", "addition"


@dataclass(frozen=True, slots=True)
class HoldLimits:
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
class Answers:
    """What the admission probe knows. ``admitted``: UIDs that answered once. ``refused``: why others did not yet."""

    admitted: Collection[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    everybody: bool = False
    """Nobody is probed: every pod counts as admitted."""

    def admit(self, uid: str) -> bool:
        return self.everybody or uid in self.admitted


@dataclass(frozen=True, slots=True)
class Facts:
    """``seen_at``: when the oldest news in this selection arrived (monotonic seconds); None if it brings none."""

    selection: Selection
    answers: Answers = field(default_factory=Answers)
    seen_at: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
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


@dataclass(frozen=True, slots=True)
class Holding:
    """What becomes of one look.

    ``sight`` is None until the first publication is worth making. ``wanted`` are to be probed. ``notes`` say, by
    pod, what a verdict does not: why a usable pod is not published, or an unusable one still is. ``again_at``:
    monotonic seconds at which time alone changes this. ``relist``: the cluster should be listed anew, as what was
    seen may be no more than an outage of its control plane. ``causes``: (``removal`` or ``addition``, when the news
    of it arrived), the oldest of each kind that this look lets through.
    """

    held: Held
    sight: Sight | None
    wanted: tuple[Host, ...] = ()
    notes: Mapping[Key, str] = field(default_factory=dict)
    again_at: float | None = None
    relist: bool = False
    causes: tuple[tuple[str, float], ...] = ()


def hold(now: float, held: Held, facts: Facts, *, limits: HoldLimits = HoldLimits()) -> tuple[Holding, str]:
    """Decide what is published of a selection: ``(holding, reason)``. ``now`` is in monotonic seconds."""
    found = _Sorted.of(facts, held)
    silent, damped = _dampen(now, held, found, limits=limits)
    named, clashes = _unique([*found.kept.values(), *damped, *found.addable], held)
    found.addable = [verdict for verdict in found.addable if verdict.pod.uid in named]
    since = now if held.looking_since is None else held.looking_since
    gathering = _or(held.gathering, now) if found.addable else None
    ripe = gathering is not None and now >= gathering + limits.settle
    begun = held.begun or found.veterans or now >= since + limits.patience
    begun = begun or (not found.undecided(facts.answers) and (ripe or gathering is None))
    # The first publication takes along who is admitted by then: to add them a moment later would be one more change.
    added = found.addable if begun and (ripe or not held.begun) else []
    waiting = {} if added else {verdict.pod.uid: verdict.pod.key for verdict in found.addable}
    hosts = {uid: host for uid, host in named.items() if uid not in waiting} if waiting else named
    after = Held(
        earlier=frozenset() if begun else held.earlier,
        published=hosts,
        fresh={uid: held.fresh.get(uid, _or(facts.seen_at, now)) for uid in found.usable if uid not in hosts},
        gathering=None if added else gathering,
        silent=silent,
        damped=bool(damped),
        looking_since=since,
        begun=begun,
    )
    ends = {verdict.pod.key: silent[verdict.pod.uid] + limits.damper for verdict in damped}
    kept = {key: f"kept for another {end - now:.0f} s: most hosts fell silent at once" for key, end in ends.items()}
    times = [*ends.values(), _after(after.gathering, limits.settle), None if begun else since + limits.patience]
    holding = Holding(
        held=after,
        sight=Sight(HostSet(tuple(hosts.values())), _departures(found.leaving, hosts.values())) if begun else None,
        wanted=tuple(found.wanted),
        notes={**found.notes, **dict.fromkeys(waiting.values(), "gathering additions"), **kept, **clashes},
        again_at=min((time for time in times if time is not None and time > now), default=None),
        relist=bool(damped) and not held.damped,
        causes=_causes(held, after, facts),
    )
    return holding, _reason(after, found, damped=len(damped))


@dataclass(slots=True)
class _Sorted:
    """The verdicts by what is to be done with them; ``kept``, ``usable`` and ``silent`` by UID.

    ``veterans``: something can be said of a host that was published when this life of the daemon began to look.
    """

    kept: dict[str, Verdict]
    usable: dict[str, Verdict]
    silent: dict[str, Verdict]
    addable: list[Verdict]
    leaving: list[Verdict]
    wanted: list[Host]
    notes: dict[Key, str]
    veterans: bool = False

    @classmethod
    def of(cls, facts: Facts, held: Held) -> _Sorted:
        made = cls({}, {}, {}, [], [], [], {})
        for verdict in facts.selection.verdicts:
            published = verdict.pod.uid in held.published
            if held.earlier and verdict.host is not None and verdict.host.name in held.earlier:
                published, made.veterans = True, made.veterans or verdict.grade is not Grade.UNFIT
            if verdict.grade is Grade.USABLE and published:
                made.kept[verdict.pod.uid] = verdict
            elif verdict.grade is Grade.USABLE:
                made._newcomer(verdict, facts.answers)
            elif verdict.grade is Grade.LEAVING:
                made.leaving.append(verdict)
            elif verdict.grade is Grade.ABSENT and (published or verdict.pod.uid in held.silent):
                made.silent[verdict.pod.uid] = verdict
        return made

    def _newcomer(self, verdict: Verdict, answers: Answers) -> None:
        pod, host = verdict.pod, _host(verdict)
        self.usable[pod.uid] = verdict
        if verdict.advisory:
            self.notes[pod.key] = f"not added: {verdict.advisory}"
        elif answers.admit(pod.uid):
            self.addable.append(verdict)
        else:
            self.wanted.append(host)
            self.notes[pod.key] = answers.refused.get(pod.uid, "being probed")

    def undecided(self, answers: Answers) -> bool:
        """Whether a probe has yet to answer for the first time."""
        return any(host.uid not in answers.refused for host in self.wanted)


def _dampen(now: float, held: Held, found: _Sorted, *, limits: HoldLimits) -> tuple[dict[str, float], list[Verdict]]:
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


def _unique(verdicts: Iterable[Verdict], held: Held) -> tuple[dict[str, Host], dict[Key, str]]:
    """Hosts by UID, each name once: the first one has it."""
    hosts: dict[str, Host] = {}
    owners: dict[str, Key] = {}
    clashes: dict[Key, str] = {}
    for verdict in verdicts:
        host = held.published[verdict.pod.uid] if verdict.host is None else verdict.host
        owner = owners.setdefault(host.name, verdict.pod.key)
        if owner == verdict.pod.key:
            hosts[verdict.pod.uid] = host
        else:
            clashes[verdict.pod.key] = f"not added: pod {owner} has the host name {host.name}, too"
    return hosts, clashes


def _departures(leaving: Iterable[Verdict], staying: Iterable[Host]) -> tuple[Departure, ...]:
    """Those who go, each name once (the one that goes first), and none who stays."""
    names = {host.name for host in staying}
    departures: dict[str, Departure] = {}
    for verdict in leaving:
        if verdict.host is None or verdict.host.name in names:
            continue
        known = departures.get(verdict.host.name)
        if known is None or _or(verdict.deadline, float("inf")) < _or(known.deadline, float("inf")):
            departures[verdict.host.name] = Departure(verdict.host.name, verdict.reason, verdict.deadline)
    return tuple(departures.values())


def _causes(before: Held, after: Held, facts: Facts) -> tuple[tuple[str, float], ...]:
    """What a hold kept back is not counted when it comes through: its time is the hold's."""
    causes = []
    if facts.seen_at is not None and any(
        uid not in after.published and uid not in before.silent for uid in before.published
    ):
        causes.append((REMOVAL, facts.seen_at))
    came = [uid for uid in after.published if uid not in before.published]
    since = [at for uid in came if (at := before.fresh.get(uid, facts.seen_at)) is not None]
    if since and after.begun:
        causes.append((ADDITION, min(since)))
    return tuple(causes)


def _reason(after: Held, found: _Sorted, *, damped: int) -> str:
    parts = [
        (len(found.wanted), "waiting for the probe"),
        (len(found.addable) if after.gathering is not None else 0, "gathering"),
        (sum(bool(verdict.advisory) for verdict in found.usable.values()), "not added for a warning"),
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
