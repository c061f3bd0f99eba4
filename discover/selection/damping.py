"""Decides when to publish changes: removals at once, additions after a probe and a short wait. If many hosts fall
silent together, they stay published for a while.

Pure. A UID identifies a pod: a new pod under an old name is another host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, TypeVar

from discover.common.source import HostsDelta, Observation
from discover.selection.objects import Key, copied, different
from discover.selection.selection import Selection, groups_of
from discover.selection.verdict_index import VerdictGroups
from discover.selection.verdicts import Grade, Verdict
from hvd_elastic_ext.core.hosts import Host, HostSet
from hvd_elastic_ext.core.publication import Departure

T = TypeVar("T")

REMOVAL, ADDITION = "removal", "addition"

_name: Final = attrgetter("name")
_host_name: Final = attrgetter("host")


@dataclass(frozen=True, slots=True)
class DampingLimits:
    """Times in seconds.

    ``settle``: how long additions are collected, so that they are published together. ``damper``: how long silent hosts
    stay published if they are more than ``share`` of all hosts that were published within that time. ``probe_wait``:
    how long the first publication waits for the first result of every probe.
    """

    settle: float = 0.5
    damper: float = 30.0
    probe_wait: float = 3.0
    share: float = 0.5

    def __post_init__(self) -> None:
        if min(self.settle, self.damper, self.probe_wait) < 0 or not 0 < self.share <= 1:
            raise ValueError("times to hold are at least 0 seconds, and the share of hosts lies between 0 and 1")


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """``admitted``: the probe keys of hosts that have answered. ``refused``: why others have not, by probe key."""

    admitted: Collection[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
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
    """What a decision depends on. ``answers``: the results of the probe. ``seen_at``: when the oldest event of this
    selection arrived (monotonic seconds), None without one.
    """

    selection: Selection
    answers: ProbeResults = field(default_factory=ProbeResults)
    seen_at: float | None = None


@dataclass(frozen=True, slots=True)
class DampingState:
    """State between looks; mappings are by UID, times in monotonic seconds.

    ``earlier``: names that an earlier run published. They count as published until the first publication.
    ``usable_since``: from when usable hosts that are not published have been usable. ``gathering``: from when additions
    have been collected. ``silent``: from when published hosts have been silent, for the time of the damper. ``damped``:
    silent hosts are kept. ``looking_since``: when the first look was. ``started``: something was published. ``clear``:
    the clear hosts of the last look, None if they are not known. ``unlike``: the looked-at pods that are either clear
    or published, but not both. All others stay published while they are clear.
    """

    earlier: frozenset[str] = frozenset()
    published: Mapping[str, Host] = field(default_factory=dict)
    usable_since: Mapping[str, float] = field(default_factory=dict)
    gathering: float | None = None
    silent: Mapping[str, float] = field(default_factory=dict)
    damped: bool = False
    looking_since: float | None = None
    started: bool = False
    observation: Observation | None = None
    """The last observation. Its parts are used again if they do not change."""
    clear: Mapping[str, Host] | None = None
    unlike: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DampingResult:
    """The result of one look.

    ``observation``: None before the first publication. ``to_probe``: hosts to probe. ``notes``: for each pod, why a
    usable one is not published, or an unusable one still is. ``again_at``: when to decide again without an event
    (monotonic seconds). ``relist``: list the cluster again, because silent hosts may come from an outage of the control
    plane only. ``causes``: pairs of ``removal`` or ``addition`` and when its event arrived, the oldest of each kind
    that this look publishes.
    """

    state: DampingState
    observation: Observation | None
    to_probe: tuple[Host, ...] = ()
    notes: Mapping[Key, str] = field(default_factory=dict)
    again_at: float | None = None
    relist: bool = False
    causes: tuple[tuple[str, float], ...] = ()
    counts_earlier: bool = False
    """Hosts of an earlier run counted as published in this look. They may not in the next one."""


def decide_published(
    now: float, state: DampingState, facts: DampingFacts, *, limits: DampingLimits = DampingLimits()
) -> tuple[DampingResult, str]:
    """Decide which hosts of a selection are published: ``(result, reason)``. ``now`` is in monotonic seconds."""
    found = _Pods.of(facts, state)
    silent, damped = _dampen(now, state, found, limits=limits)
    named, clashes = _unique(found, damped, state, facts.answers)
    found.addable = {uid: host for uid, host in found.addable.items() if uid in named}
    since = now if state.looking_since is None else state.looking_since
    gathering = _or(state.gathering, now) if found.addable else None
    ripe = gathering is not None and now >= gathering + limits.settle
    started = state.started or found.known_before or now >= since + limits.probe_wait
    started = started or (not found.undecided(facts.answers) and (ripe or gathering is None))
    # The first publication includes all hosts that are admitted by then, so that no second one follows at once.
    added = found.addable if started and (ripe or not state.started) else {}
    waiting = {} if added else {uid: found.groups.keys[uid] for uid in found.addable}
    change = _Change.of(
        state.published, found.touched, {uid: host for uid, host in named.items() if uid not in waiting}
    )
    hosts = change.made_to(state.published)
    after = DampingState(
        earlier=frozenset() if started else state.earlier,
        published=hosts,
        usable_since={
            uid: state.usable_since.get(uid, _or(facts.seen_at, now)) for uid in found.usable if uid not in hosts
        },
        gathering=None if added else gathering,
        silent=silent,
        damped=bool(damped),
        looking_since=since,
        started=started,
        observation=_observation(hosts, change, found.groups.departures.values(), state.observation)
        if started
        else None,
        clear=found.groups.clear,
        unlike=frozenset(uid for uid in found.touched if (uid in hosts) != (uid in found.groups.clear)),
    )
    ends = {verdict.pod.key: silent[verdict.pod.uid] + limits.damper for verdict in damped}
    kept = {key: f"kept for another {end - now:.0f} s: most hosts fell silent at once" for key, end in ends.items()}
    times = [*ends.values(), _after(after.gathering, limits.settle), None if started else since + limits.probe_wait]
    damping = DampingResult(
        state=after,
        observation=after.observation,
        to_probe=tuple(found.to_probe),
        notes={**found.notes, **dict.fromkeys(waiting.values(), "gathering additions"), **kept, **clashes},
        again_at=min((time for time in times if time is not None and time > now), default=None),
        relist=bool(damped) and not state.damped,
        causes=_causes(state, change, facts, started=started),
        counts_earlier=bool(state.earlier),
    )
    return damping, _reason(after, found, damped=len(damped))


def still_holds(now: float, damping: DampingResult, *, of: DampingFacts, facts: DampingFacts) -> bool:
    """Whether :func:`decide_published` would return ``damping`` again for ``facts``. ``damping`` is its result for the
    facts ``of``.

    True only if that is clear without a comparison of hosts: groups without changes are the same objects.
    """
    before, groups = of.selection.groups, facts.selection.groups
    return (
        before is not None
        and groups is not None
        and groups.clear is before.clear
        and groups.marked is before.marked
        and groups.departures is before.departures
        and facts.answers == of.answers
        and damping.state.started
        and not damping.counts_earlier
        and not damping.state.damped  # the notes of damped hosts have the seconds left, which change
        and (damping.again_at is None or now < damping.again_at)
    )


@dataclass(slots=True)
class _Pods:
    """The pods that may change the published hosts, in groups; by UID except in ``to_probe`` and ``notes``.

    ``touched``: all looked-at pods. ``others``: how many more are published, and stay so. ``kept``: published and
    usable. ``usable``: usable and new, with the advisory against them. ``addable``: new ones that have answered the
    probe and have no advisory. ``silent``: published and silent. ``known_before``: an earlier run published one of
    them.
    """

    groups: VerdictGroups
    touched: set[str]
    others: int
    kept: dict[str, Host] = field(default_factory=dict)
    usable: dict[str, str] = field(default_factory=dict)
    addable: dict[str, Host] = field(default_factory=dict)
    silent: dict[str, Verdict] = field(default_factory=dict)
    to_probe: list[Host] = field(default_factory=list)
    notes: dict[Key, str] = field(default_factory=dict)
    known_before: bool = False

    @classmethod
    def of(cls, facts: DampingFacts, state: DampingState) -> _Pods:
        """Look at pods that have changed, and at those that were not both clear and published. These are few."""
        groups = groups_of(facts.selection)
        if state.clear is None:
            touched = {*state.published, *groups.clear}
        else:
            touched = {*state.unlike, *different(state.clear, groups.clear, groups.cleared)}
        touched.update(verdict.pod.uid for verdict in groups.marked)
        made = cls(groups, touched, len(state.published) - len(touched & state.published.keys()))
        for uid in sorted(touched & groups.clear.keys(), key=groups.keys.__getitem__):
            host = groups.clear[uid]
            if uid in state.published or made._known(host, state):
                made.kept[uid] = host
            else:
                made._newcomer(uid, host, "", facts.answers)
        for verdict in groups.marked:
            made._mark(verdict, facts, state)
        for verdict in facts.selection.verdicts if state.earlier else ():
            if verdict.grade is Grade.LEAVING:
                made._known(verdict.host, state)
        return made

    def _known(self, host: Host | None, state: DampingState) -> bool:
        """Whether an earlier run of the daemon published the host; record it in ``known_before``."""
        known = bool(state.earlier) and host is not None and host.name in state.earlier
        self.known_before = self.known_before or known
        return known

    def _mark(self, verdict: Verdict, facts: DampingFacts, state: DampingState) -> None:
        uid = verdict.pod.uid
        published = self._known(verdict.host, state) or uid in state.published
        if verdict.grade is Grade.USABLE and published:
            self.kept[uid] = _host(verdict)
        elif verdict.grade is Grade.USABLE:
            self._newcomer(uid, _host(verdict), verdict.advisory, facts.answers)
        elif published or uid in state.silent:
            self.silent[uid] = verdict

    def _newcomer(self, uid: str, host: Host, advisory: str, answers: ProbeResults) -> None:
        self.usable[uid] = advisory
        if advisory:
            self.notes[self.groups.keys[uid]] = f"not added: {advisory}"
        elif answers.admit(host):
            self.addable[uid] = host
        else:
            self.to_probe.append(host)
            self.notes[self.groups.keys[uid]] = answers.refused.get(probe_key(host), "being probed")

    def displace(self, uid: str, answers: ProbeResults) -> None:
        """Count a published pod as a new one."""
        advisory = next((verdict.advisory for verdict in self.groups.marked if verdict.pod.uid == uid), "")
        self._newcomer(uid, self.kept.pop(uid), advisory, answers)

    def undecided(self, answers: ProbeResults) -> bool:
        """Whether a probe has no first result yet."""
        return any(probe_key(host) not in answers.refused for host in self.to_probe)


def _dampen(
    now: float, state: DampingState, found: _Pods, *, limits: DampingLimits
) -> tuple[dict[str, float], list[Verdict]]:
    """Return from when each host has been silent, and which silent hosts stay published.

    A silent host counts for the time of the damper, so earlier ones count together with new ones. In an outage nodes
    fall silent one by one, as their leases expire.
    """
    since = {uid: state.silent.get(uid, now) for uid in found.silent}
    # Drop a host when its time is over: then it is removed, and does not count as silent again.
    silent = {uid: at for uid, at in since.items() if now < at + limits.damper}
    if len(silent) <= limits.share * (found.others + len(found.kept) + len(silent)):
        return silent, []
    return silent, [found.silent[uid] for uid in silent if uid not in state.silent or uid in state.published]


def _unique(
    found: _Pods, damped: Iterable[Verdict], state: DampingState, answers: ProbeResults
) -> tuple[dict[str, Host], dict[Key, str]]:
    """Return the hosts of the looked-at pods by UID, and notes on pods whose host name another pod has.

    Each name occurs once: the first pod keeps it. If a name occurs twice, this looks at all pods. A published pod that
    loses its name is a new one from this look on, as the next look will find it.
    """
    silent = {each.pod.uid: state.published[each.pod.uid] if each.host is None else each.host for each in damped}
    every = {**found.kept, **silent, **found.addable}
    names = {host.name for host in every.values()}
    if len(names) == len(every) and not _others_have(names, found, state):
        return every, {}
    others = {uid: host for uid, host in state.published.items() if uid not in found.touched}
    found.touched.update(others)
    found.kept.update(others)
    every.update(others)
    hosts: dict[str, Host] = {}
    owners: dict[str, Key] = {}
    clashes: dict[Key, str] = {}
    for uid in (*sorted(found.kept, key=found.groups.keys.__getitem__), *silent, *found.addable):
        host, key = every[uid], found.groups.keys[uid]
        owner = owners.setdefault(host.name, key)
        if owner == key:
            hosts[uid] = host
            continue
        if uid in found.kept:
            found.displace(uid, answers)
        if uid not in found.usable or uid in found.addable:
            clashes[key] = f"not added: pod {owner} has the host name {host.name}, too"
    return hosts, clashes


def _others_have(names: Iterable[str], found: _Pods, state: DampingState) -> bool:
    """Whether a published pod outside ``found.touched`` has one of ``names``."""
    if state.observation is None:
        others = {host.name for uid, host in state.published.items() if uid not in found.touched}
        return any(name in others for name in names)
    there = state.observation.hosts
    own = {host.name for uid in found.touched if (host := state.published.get(uid)) is not None}
    return any(name in there and name not in own for name in names)


@dataclass(frozen=True, slots=True)
class _Change:
    """The published hosts that change, by UID: as they were before, and as they are after."""

    before: Mapping[str, Host]
    after: Mapping[str, Host]

    @classmethod
    def of(cls, published: Mapping[str, Host], touched: Iterable[str], now: Mapping[str, Host]) -> _Change:
        """Return the change to ``published``. ``now``: the hosts of ``touched`` pods that are published from now on."""
        before, after = {}, {}
        for uid in touched:
            was, host = published.get(uid), now.get(uid)
            if was is host or was == host:
                continue
            if was is not None:
                before[uid] = was
            if host is not None:
                after[uid] = host
        return cls(before, after)

    def __bool__(self) -> bool:
        return bool(self.before or self.after)

    def made_to(self, published: Mapping[str, Host]) -> Mapping[str, Host]:
        """Return ``published`` with this change; the same object if nothing changes."""
        if not self:
            return published
        hosts = copied(published)
        hosts.update(self.after)
        for uid in self.before.keys() - self.after.keys():
            del hosts[uid]
        return hosts


def _observation(
    hosts: Mapping[str, Host], change: _Change, departures: Iterable[Departure], before: Observation | None
) -> Observation:
    """Return the observation of ``hosts``. ``before``: the last one, which ``change`` turns into this one. Parts that
    do not change are used again.
    """
    if before is None:
        shown = HostSet(tuple(hosts.values()))
        return Observation(shown, _departures(departures, shown))
    shown, changed = before.hosts, HostsDelta(before.hosts, ())
    if change:
        come = sorted(change.after.values(), key=_name)
        names = {*map(_name, change.before.values()), *map(_name, come)}
        shown = shown.with_changes(gone=names - set(map(_name, come)), come=come)
        changed = HostsDelta(before.hosts, sorted(names))
    departing = _departures(departures, shown)
    if not change and departing == before.departing:
        return before
    return Observation(shown, departing, changed=changed)


def _departures(departures: Iterable[Departure], staying: HostSet) -> tuple[Departure, ...]:
    """Return the departures in order of the hosts' names: each host once with its earliest deadline, and none that
    stays. Of equal deadlines, the order of the reasons decides, because ``departures`` are in no order.
    """
    names = staying.by_name
    going = sorted([each for each in departures if each.host not in names], key=_host_name)
    if len(set(map(_host_name, going))) < len(going):
        going.sort(key=lambda each: (_or(each.deadline, float("inf")), each.reason))
        going = sorted({each.host: each for each in reversed(going)}.values(), key=_host_name)
    return tuple(going)


def _causes(
    before: DampingState, change: _Change, facts: DampingFacts, *, started: bool
) -> tuple[tuple[str, float], ...]:
    """Return the oldest cause of each kind. A removal that the damper has delayed does not count, because its latency
    is that of the delay.
    """
    causes = []
    gone, come = change.before.keys() - change.after.keys(), change.after.keys() - change.before.keys()
    if facts.seen_at is not None and not gone <= before.silent.keys():
        causes.append((REMOVAL, facts.seen_at))
    since = [at for uid in come if (at := before.usable_since.get(uid, facts.seen_at)) is not None]
    if since and started:
        causes.append((ADDITION, min(since)))
    return tuple(causes)


def _reason(after: DampingState, found: _Pods, *, damped: int) -> str:
    parts = [
        (len(found.to_probe), "waiting for the probe"),
        (len(found.addable) if after.gathering is not None else 0, "gathering"),
        (sum(map(bool, found.usable.values())), "not added for a warning"),
        (damped, "silent and kept for now"),
        (len(found.groups.departures), "leaving"),
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
