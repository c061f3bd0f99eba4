"""Decides when to publish changes: removals at once, additions after a probe and a short wait. If many hosts fall
silent together, they stay published for a while.

Pure. Each look decides about all pods, from their verdicts and from what the last look has published, so nothing can be
missed. Pods whose verdicts are the objects of the last look keep its groups: if one of a thousand pods changes, a look
takes a tenth of a millisecond. A UID identifies a pod: a new pod under an old name is another host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, TypeVar

from discover.pods.views import Key
from discover.sources import Observation
from discover.verdicts.verdicts import Grade, Selection, Verdict
from hvd_elastic_ext.core.hosts import Host, HostSet, follow
from hvd_elastic_ext.core.publication import Departure
from hvd_elastic_ext.core.sequences import common_ends

T = TypeVar("T")
REMOVAL, ADDITION = "removal", "addition"
_host_name: Final = attrgetter("host")
_name: Final = attrgetter("name")
_key: Final = attrgetter("pod.key")


@dataclass(frozen=True, slots=True)
class DampingLimits:
    """Times in seconds, and a share of hosts."""

    settle: float = 0.5
    """How long additions are collected, so that they are published together."""
    damper: float = 30.0
    """How long silent hosts stay published if they are more than ``share`` of all hosts."""
    probe_wait: float = 3.0
    """How long the first publication waits for the first result of every probe."""
    share: float = 0.5
    """Of the hosts that were published within the time of the damper."""

    def __post_init__(self) -> None:
        if min(self.settle, self.damper, self.probe_wait) < 0 or not 0 < self.share <= 1:
            raise ValueError("times to hold are at least 0 seconds, and the share of hosts lies between 0 and 1")


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """What the probe of new hosts has found so far."""

    admitted: Collection[str] = ()
    """The probe keys of hosts that have answered."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why others have not, by probe key."""
    admits_all: bool = False
    """There is no probe: every pod counts as admitted."""

    def admit(self, host: Host) -> bool:
        """Whether the host may be published, because its probe has succeeded once or there is no probe."""
        return self.admits_all or probe_key(host) in self.admitted


NO_PROBE: Final = ProbeResults(admits_all=True)


def probe_key(host: Host) -> str:
    """Return the key of a host's probe results: its pod's UID and container. A new container has to answer again."""
    return f"{host.uid}/{host.life}" if host.life else host.uid


@dataclass(frozen=True, slots=True)
class DampingFacts:
    """What a decision depends on."""

    selection: Selection
    answers: ProbeResults = field(default_factory=ProbeResults)
    seen_at: float | None = None
    """When the oldest event of this selection arrived (monotonic seconds), None without one."""


@dataclass(frozen=True, slots=True)
class DampingState:
    """State between looks; mappings are by UID, times in monotonic seconds."""

    earlier: HostSet = field(default_factory=HostSet)
    """Hosts that an earlier run published. They count as published until the first publication."""
    published: Mapping[str, Host] = field(default_factory=dict)
    usable_since: Mapping[str, float] = field(default_factory=dict)
    """From when usable hosts that are not published have been usable."""
    gathering: float | None = None
    """From when additions have been collected."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """From when published hosts have been silent, for the time of the damper."""
    damped: bool = False
    """Silent hosts are kept."""
    looking_since: float | None = None
    """When the first look was."""
    started: bool = False
    """Something was published."""
    observation: Observation | None = None
    """The last observation. It is used again while nothing changes."""
    pods: _Pods | None = None
    """The groups of the last look."""


@dataclass(frozen=True, slots=True)
class DampingResult:
    """The result of one look."""

    state: DampingState
    observation: Observation | None
    """None before the first publication."""
    to_probe: tuple[Host, ...] = ()
    notes: Mapping[Key, str] = field(default_factory=dict)
    """For each pod, why a usable one is not published, or an unusable one still is."""
    again_at: float | None = None
    """When to decide again without an event (monotonic seconds)."""
    relist: bool = False
    """List the cluster again, because silent hosts may come from an outage of the control plane only."""
    causes: tuple[tuple[str, float], ...] = ()
    """Pairs of ``removal`` or ``addition`` and when its event arrived, the oldest of each kind that this look
    publishes.
    """


def decide_published(
    now: float, state: DampingState, facts: DampingFacts, *, limits: DampingLimits = DampingLimits()
) -> tuple[DampingResult, str]:
    """Decide which hosts of a selection are published: ``(result, reason)``. ``now`` is in monotonic seconds."""
    pods = _Pods.of(facts, state)
    silent, damped = _dampen(now, state, pods, limits=limits)
    named, clashes = _unique(pods, damped, state, facts)
    pods.addable = {uid: verdict for uid, verdict in pods.addable.items() if uid in named}
    since = now if state.looking_since is None else state.looking_since
    gathering = _or(state.gathering, now) if pods.addable else None
    ripe = gathering is not None and now >= gathering + limits.settle
    started = state.started or pods.known_before or now >= since + limits.probe_wait
    started = started or (not pods.undecided(facts.answers) and (ripe or gathering is None))
    # The first publication includes all hosts that are admitted by then, so that no second one follows at once.
    added = bool(pods.addable) and started and (ripe or not state.started)
    waiting = {} if added else pods.addable
    published: Mapping[str, Host] = named
    if waiting:
        published = {uid: host for uid, host in named.items() if uid not in waiting}
    if published == state.published:
        published = state.published  # the same object: then the observation is the same one, too
    # If one has got another name, another one may have lost it.
    may_be_gone: Iterable[str] = state.published if pods.moved else pods.looked_at
    gone = {uid for uid in may_be_gone if uid in state.published and uid not in published}
    come = {uid for uid in pods.looked_at if uid in published and uid not in state.published}
    same = not (come or damped or pods.moved)
    after = DampingState(
        earlier=HostSet() if started else state.earlier,
        published=published,
        usable_since={
            uid: state.usable_since.get(uid, _or(facts.seen_at, now)) for uid in pods.usable if uid not in published
        },
        gathering=None if added else gathering,
        silent=silent,
        damped=bool(damped),
        looking_since=since,
        started=started,
        observation=_observation(published, pods, state, gone=gone, same=same) if started else None,
        pods=pods,
    )
    ends = {verdict.pod.key: silent[verdict.pod.uid] + limits.damper for verdict in damped}
    kept = {key: f"kept for another {end - now:.0f} s: most hosts fell silent at once" for key, end in ends.items()}
    gathered = {verdict.pod.key: "gathering additions" for verdict in waiting.values()}
    times = [*ends.values(), _after(after.gathering, limits.settle), None if started else since + limits.probe_wait]
    damping = DampingResult(
        state=after,
        observation=after.observation,
        to_probe=tuple(pods.to_probe),
        notes={**pods.notes, **gathered, **kept, **clashes},
        again_at=min((time for time in times if time is not None and time > now), default=None),
        relist=bool(damped) and not state.damped,
        causes=_causes(state, facts, gone=gone, come=come, started=started),
    )
    return damping, _reason(after, pods, damped=len(damped))


@dataclass(slots=True)
class _Pods:
    """The pods that may be hosts, in groups, in order of their keys; by UID except in ``to_probe`` and ``notes``."""

    verdicts: tuple[Verdict, ...] = ()
    """Of all pods."""
    kept: dict[str, Host] = field(default_factory=dict)
    """Published and usable, in any order."""
    departures: dict[str, Departure] = field(default_factory=dict)
    """Of hosts that leave or have left, in any order."""
    looked_at: Set[str] = frozenset()
    """All whose group may be another one than at the last look."""
    moved: bool = False
    """One of the kept ones was not published, or as another host."""
    usable: dict[str, Verdict] = field(default_factory=dict)
    """Usable and new."""
    addable: dict[str, Verdict] = field(default_factory=dict)
    """New ones that have answered the probe and have no advisory."""
    silent: dict[str, Verdict] = field(default_factory=dict)
    """Published and silent."""
    to_probe: list[Host] = field(default_factory=list)
    notes: dict[Key, str] = field(default_factory=dict)
    known_before: bool = False
    """An earlier run published one of them."""

    @classmethod
    def of(cls, facts: DampingFacts, state: DampingState) -> _Pods:
        """Group the verdicts of a selection. While a verdict is the same object, a pod stays in its group: it is looked
        at again only if more than the verdict counts, as it does for new and for silent pods.
        """
        verdicts, before = facts.selection.verdicts, state.published
        last = state.pods or cls()
        start, end = common_ends(last.verdicts, verdicts)
        made, news = cls(verdicts, dict(last.kept), dict(last.departures)), verdicts[start : len(verdicts) - end]
        past = {verdict.pod.uid for verdict in last.verdicts[start : len(last.verdicts) - end]}
        for uid in past:
            made.kept.pop(uid, None)
            made.departures.pop(uid, None)
        again = [each for each in (*last.usable.values(), *last.silent.values()) if each.pod.uid not in past]
        looked_at = sorted([*again, *news], key=_key) if again else news
        made.looked_at = past.union([each.pod.uid for each in looked_at], before if state.pods is None else ())
        kept, usable, absent, unfit, leaving = made.kept, Grade.USABLE, Grade.ABSENT, Grade.UNFIT, Grade.LEAVING
        earlier = state.earlier.by_name
        for verdict in looked_at:
            uid, grade, host = verdict.pod.uid, verdict.grade, verdict.host
            if grade is usable and host is not None and (was := before.get(uid)) is not None:
                kept[uid] = was if was == host else host
                made.moved = made.moved or was != host
            elif grade is usable:
                if made._known(verdict, earlier):
                    kept[uid], made.moved = _host(verdict), True
                else:
                    made.newcomer(verdict, facts.answers)
            elif grade is absent:
                if made._known(verdict, earlier) or uid in before or uid in state.silent:
                    made.silent[uid] = verdict
            elif grade is not unfit and host is not None:
                if grade is leaving:
                    made._known(verdict, earlier)
                made.departures[uid] = _departure(verdict, host, last.departures.get(uid))
        return made

    def _known(self, verdict: Verdict, earlier: Mapping[str, Host]) -> bool:
        """Whether an earlier run of the daemon published the host; record it in ``known_before``."""
        known = verdict.host is not None and verdict.host.name in earlier
        self.known_before = self.known_before or known
        return known

    def newcomer(self, verdict: Verdict, answers: ProbeResults) -> None:
        """Count a usable pod as a new one."""
        uid, key, host = verdict.pod.uid, verdict.pod.key, _host(verdict)
        self.usable[uid] = verdict
        if verdict.advisory:
            self.notes[key] = f"not added: {verdict.advisory}"
        elif answers.admit(host):
            self.addable[uid] = verdict
        else:
            self.to_probe.append(host)
            self.notes[key] = answers.refused.get(probe_key(host), "being probed")

    def undecided(self, answers: ProbeResults) -> bool:
        """Whether a probe has no first result yet."""
        return any(probe_key(host) not in answers.refused for host in self.to_probe)


def _departure(verdict: Verdict, host: Host, told: Departure | None) -> Departure:
    """Return the departure of a host that leaves or has left: ``told``, what the last look had of it, if that holds."""
    departure = Departure(host.name, verdict.reason, verdict.deadline)
    return departure if told is None or told != departure else told


def _dampen(
    now: float, state: DampingState, pods: _Pods, *, limits: DampingLimits
) -> tuple[dict[str, float], list[Verdict]]:
    """Return from when each host has been silent, and which silent hosts stay published.

    A silent host counts for the time of the damper, so earlier ones count together with new ones. In an outage nodes
    fall silent one by one, as their leases expire.
    """
    since = {uid: state.silent.get(uid, now) for uid in pods.silent}
    # Drop a host when its time is over: then it is removed, and does not count as silent again.
    silent = {uid: at for uid, at in since.items() if now < at + limits.damper}
    if len(silent) <= limits.share * (len(pods.kept) + len(silent)):
        return silent, []
    return silent, [pods.silent[uid] for uid in silent if uid not in state.silent or uid in state.published]


def _unique(
    pods: _Pods, damped: Iterable[Verdict], state: DampingState, facts: DampingFacts
) -> tuple[dict[str, Host], dict[Key, str]]:
    """Return the hosts to publish or to add by UID, and notes on pods whose host name another pod has.

    Each name occurs once: the first pod keeps it, published ones before silent and new ones. A published pod that loses
    its name is a new one from this look on, as the next look will find it.
    """
    if not (damped or pods.addable or pods.moved):
        return pods.kept, {}  # hosts that are published now, so their names are unique
    every = dict(pods.kept)
    # A silent pod may have no host of its own now: it keeps the one under which it was published.
    every.update((uid := verdict.pod.uid, verdict.host or state.published[uid]) for verdict in damped)
    every.update((uid, _host(verdict)) for uid, verdict in pods.addable.items())
    if len({host.name for host in every.values()}) == len(every):
        return every, {}
    verdicts = {verdict.pod.uid: verdict for verdict in facts.selection.verdicts}
    every = {uid: every[uid] for uid in verdicts if uid in pods.kept} | every  # kept ones in order of their keys
    hosts: dict[str, Host] = {}
    owners: dict[str, Key] = {}
    clashes: dict[Key, str] = {}
    for uid, host in every.items():
        key = verdicts[uid].pod.key
        owner = owners.setdefault(host.name, key)
        if owner == key:
            hosts[uid] = host
            continue
        if uid in pods.kept:
            del pods.kept[uid]
            pods.newcomer(verdicts[uid], facts.answers)
        if uid not in pods.usable or uid in pods.addable:
            clashes[key] = f"not added: pod {owner} has the host name {host.name}, too"
    return hosts, clashes


def _observation(
    published: Mapping[str, Host], pods: _Pods, before: DampingState, *, gone: Set[str], same: bool
) -> Observation:
    """Return the observation of the ``published`` hosts, in order of seniority: the last one if nothing has changed.
    ``same``: all of them were published before, and are the same hosts. ``gone``: who was, and is not any more.
    """
    last = before.observation
    if last is not None and published is before.published:
        hosts = last.hosts
    elif last is not None and same:
        hosts = last.hosts.without(before.published[uid].name for uid in gone)
    else:
        hosts, _ = follow(before.earlier if last is None else last.hosts, published.values(), newcomers=_name)
    departing = _departures(pods.departures.values(), hosts)
    if last is not None and hosts is last.hosts and departing == last.departing:
        return last
    return Observation(hosts, departing)


def _departures(departures: Iterable[Departure], staying: HostSet) -> tuple[Departure, ...]:
    """Return the departures in order of the hosts' names: each host once with its earliest deadline, and none that
    stays. Of equal deadlines, the order of the reasons decides.
    """
    names = staying.by_name
    going = sorted([each for each in departures if each.host not in names], key=_host_name)
    if len(set(map(_host_name, going))) < len(going):
        going.sort(key=lambda each: (_or(each.deadline, float("inf")), each.reason))
        going = sorted({each.host: each for each in reversed(going)}.values(), key=_host_name)
    return tuple(going)


def _causes(
    before: DampingState, facts: DampingFacts, *, gone: Set[str], come: Set[str], started: bool
) -> tuple[tuple[str, float], ...]:
    """Return the oldest cause of each kind. A removal that the damper has delayed does not count, because its latency
    is that of the delay.
    """
    causes = []
    if facts.seen_at is not None and not gone <= before.silent.keys():
        causes.append((REMOVAL, facts.seen_at))
    since = [at for uid in come if (at := before.usable_since.get(uid, facts.seen_at)) is not None]
    if since and started:
        causes.append((ADDITION, min(since)))
    return tuple(causes)


def _reason(after: DampingState, pods: _Pods, *, damped: int) -> str:
    parts = [
        (len(pods.to_probe), "waiting for the probe"),
        (len(pods.addable) if after.gathering is not None else 0, "gathering"),
        (sum(bool(verdict.advisory) for verdict in pods.usable.values()), "not added for a warning"),
        (damped, "silent and kept for now"),
        (len(pods.departures), "leaving"),
    ]
    counts = [f"{count} {what}" for count, what in parts if count]
    return "; ".join([f"{len(after.published)} published", *counts])


def _host(verdict: Verdict) -> Host:
    if verdict.host is None:
        raise ValueError(f"pod {verdict.pod.key} is called usable and has no host")
    return verdict.host


def _or(value: T | None, other: T) -> T:
    return other if value is None else value


def _after(time: float | None, seconds: float) -> float | None:
    return None if time is None else time + seconds
