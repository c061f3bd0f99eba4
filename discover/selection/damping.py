"""When changes are published: removals at once, additions after a probe and a short wait, silent hosts not all at once.

Pure. Pods are known by UID: one that was recreated under its name is another host.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

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

    ``settle``: how long additions are collected to be published together. ``damper``: how long silent hosts stay
    published when they are more than ``share`` of all that were published within that time. ``probe_wait``: how long
    the first publication waits for every probe's first result.
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
    """``admitted``: probe keys that answered once. ``refused``: why others have not answered yet."""

    admitted: Collection[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    admits_all: bool = False
    """There is no probe: every pod counts as admitted."""

    def admit(self, host: Host) -> bool:
        """Whether the host may be published: its probe has succeeded once, or there is no probe."""
        return self.admits_all or probe_key(host) in self.admitted


NO_PROBE: Final = ProbeResults(admits_all=True)


def probe_key(host: Host) -> str:
    """The key of a host's probe results: its pod's UID and container. A new container has to answer again."""
    return f"{host.uid}/{host.life}" if host.life else host.uid


@dataclass(frozen=True, slots=True)
class DampingFacts:
    """``seen_at``: when the oldest event of this selection arrived (monotonic seconds), None without one."""

    selection: Selection
    answers: ProbeResults = field(default_factory=ProbeResults)
    seen_at: float | None = None


@dataclass(frozen=True, slots=True)
class DampingState:
    """What is remembered from look to look; mappings are by UID, times in monotonic seconds.

    ``earlier``: names that an earlier run published; they count as published in the first look. ``usable_since``: of
    usable hosts that are not published. ``gathering``: since when additions are being collected. ``silent``: since when
    hosts that were published have been silent, for no longer than the damper holds.
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
    """What was shown last; its parts are used again if they are the same."""


@dataclass(frozen=True, slots=True)
class DampingResult:
    """The result of one look.

    ``observation`` is None before the first publication. ``to_probe``: hosts to probe. ``notes``, by pod: why a usable
    pod is not published, or an unusable one still is. ``again_at``: when time alone changes the result (monotonic
    seconds). ``relist``: the cluster should be listed again, as the control plane may merely be out. ``causes``:
    (``removal`` or ``addition``, when its event arrived), the oldest of each kind that this look publishes.
    """

    state: DampingState
    observation: Observation | None
    to_probe: tuple[Host, ...] = ()
    notes: Mapping[Key, str] = field(default_factory=dict)
    again_at: float | None = None
    relist: bool = False
    causes: tuple[tuple[str, float], ...] = ()


def decide_published(
    now: float, state: DampingState, facts: DampingFacts, *, limits: DampingLimits = DampingLimits()
) -> tuple[DampingResult, str]:
    """Decide what is published of a selection: ``(result, reason)``. ``now`` is in monotonic seconds."""
    found = _Pods.of(facts, state)
    silent, damped = _dampen(now, state, found, limits=limits)
    named, clashes = _unique(found, damped, state)
    found.addable = {uid: host for uid, host in found.addable.items() if uid in named}
    since = now if state.looking_since is None else state.looking_since
    gathering = _or(state.gathering, now) if found.addable else None
    ripe = gathering is not None and now >= gathering + limits.settle
    started = state.started or found.known_before or now >= since + limits.probe_wait
    started = started or (not found.undecided(facts.answers) and (ripe or gathering is None))
    # The first publication includes all that are admitted by then, to save a second change a moment later.
    added = found.addable if started and (ripe or not state.started) else {}
    waiting = {} if added else {uid: found.keys[uid] for uid in found.addable}
    hosts = {uid: host for uid, host in named.items() if uid not in waiting} if waiting else named
    unchanged = hosts == state.published
    after = DampingState(
        earlier=frozenset() if started else state.earlier,
        published=state.published if unchanged else hosts,
        usable_since={
            uid: state.usable_since.get(uid, _or(facts.seen_at, now)) for uid in found.usable if uid not in hosts
        },
        gathering=None if added else gathering,
        silent=silent,
        damped=bool(damped),
        looking_since=since,
        started=started,
        observation=_observation(hosts, found.leaving, state.observation, unchanged=unchanged) if started else None,
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
        causes=() if unchanged else _causes(state, after, facts),
    )
    return damping, _reason(after, found, damped=len(damped))


def still_holds(now: float, damping: DampingResult, *, of: DampingFacts, facts: DampingFacts) -> bool:
    """Whether :func:`decide_published` would return ``damping`` again, its result for the facts ``of``.

    True only where no comparison is needed: groups without changes are the same objects.
    """
    before, groups = of.selection.groups, facts.selection.groups
    return (
        before is not None
        and groups is not None
        and groups.clear is before.clear
        and groups.marked is before.marked
        and facts.answers == of.answers
        and damping.state.started
        and not damping.state.damped  # else the reason says how long it is still held
        and (damping.again_at is None or now < damping.again_at)
    )


@dataclass(slots=True)
class _Pods:
    """The pods by what happens to them, by UID except in ``leaving``, ``to_probe`` and ``notes``.

    ``kept``: published and usable. ``usable``: new ones, with the advisory against them; ``addable``: those that
    answered the probe and have no advisory. ``silent``: published, and silent. ``known_before``: one of them was
    published by an earlier run.
    """

    keys: Mapping[str, Key]
    kept: dict[str, Host]
    usable: dict[str, str] = field(default_factory=dict)
    addable: dict[str, Host] = field(default_factory=dict)
    silent: dict[str, Verdict] = field(default_factory=dict)
    leaving: list[Verdict] = field(default_factory=list)
    to_probe: list[Host] = field(default_factory=list)
    notes: dict[Key, str] = field(default_factory=dict)
    known_before: bool = False

    @classmethod
    def of(cls, facts: DampingFacts, state: DampingState) -> _Pods:
        """Does not look one by one at pods that are published and clear: nearly all are."""
        groups = groups_of(facts.selection)
        made = cls(groups.keys, dict(groups.clear))
        fresh = () if groups.clear.keys() == state.published.keys() else groups.clear.keys() - state.published.keys()
        for uid in sorted(fresh, key=groups.keys.__getitem__):
            if not made._known(groups.clear[uid], state):
                made._newcomer(uid, made.kept.pop(uid), "", facts.answers)
        for verdict in groups.marked:
            made._mark(verdict, facts, state)
        return made

    def _known(self, host: Host | None, state: DampingState) -> bool:
        """Whether an earlier run of the daemon published it."""
        known = bool(state.earlier) and host is not None and host.name in state.earlier
        self.known_before = self.known_before or known
        return known

    def _mark(self, verdict: Verdict, facts: DampingFacts, state: DampingState) -> None:
        if verdict.grade is Grade.GONE:
            self.leaving.append(verdict)
            return
        uid = verdict.pod.uid
        published = self._known(verdict.host, state) or uid in state.published
        if verdict.grade is Grade.USABLE and published:
            self.kept[uid] = _host(verdict)
        elif verdict.grade is Grade.USABLE:
            self._newcomer(uid, _host(verdict), verdict.advisory, facts.answers)
        elif verdict.grade is Grade.LEAVING:
            self.leaving.append(verdict)
        elif verdict.grade is Grade.ABSENT and (published or uid in state.silent):
            self.silent[uid] = verdict

    def _newcomer(self, uid: str, host: Host, advisory: str, answers: ProbeResults) -> None:
        self.usable[uid] = advisory
        if advisory:
            self.notes[self.keys[uid]] = f"not added: {advisory}"
        elif answers.admit(host):
            self.addable[uid] = host
        else:
            self.to_probe.append(host)
            self.notes[self.keys[uid]] = answers.refused.get(probe_key(host), "being probed")

    def undecided(self, answers: ProbeResults) -> bool:
        """Whether a probe has no first result yet."""
        return any(probe_key(host) not in answers.refused for host in self.to_probe)


def _dampen(
    now: float, state: DampingState, found: _Pods, *, limits: DampingLimits
) -> tuple[dict[str, float], list[Verdict]]:
    """Say since when which hosts are silent, and which of them stay published.

    A loss counts for as long as the damper holds: an outage takes nodes one by one, as their leases expire. So hosts
    lost before count with those lost now.
    """
    since = {uid: state.silent.get(uid, now) for uid in found.silent}
    # A host is forgotten when its time is over, and so gets no second time.
    silent = {uid: at for uid, at in since.items() if now < at + limits.damper}
    if len(silent) <= limits.share * (len(found.kept) + len(silent)):
        return silent, []
    return silent, [found.silent[uid] for uid in silent if uid not in state.silent or uid in state.published]


def _unique(found: _Pods, damped: Iterable[Verdict], state: DampingState) -> tuple[dict[str, Host], dict[Key, str]]:
    """Return hosts by UID, each name once; the first one keeps it."""
    silent = {each.pod.uid: state.published[each.pod.uid] if each.host is None else each.host for each in damped}
    every = {**found.kept, **silent, **found.addable}
    if every == state.published or len({host.name for host in every.values()}) == len(every):
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


def _observation(
    hosts: Mapping[str, Host], leaving: Iterable[Verdict], before: Observation | None, *, unchanged: bool
) -> Observation:
    """``before``: what was shown last, with the same hosts if ``unchanged``. Its parts are used again."""
    usable = before.hosts if before is not None and unchanged else HostSet(tuple(hosts.values()))
    departing = _departures(leaving, usable, () if before is None else before.departing)
    if before is not None and unchanged and before.departing == departing:
        return before
    return Observation(usable, departing)


def _departures(leaving: Iterable[Verdict], staying: HostSet, before: Iterable[Departure]) -> tuple[Departure, ...]:
    """The hosts that go, each name once with its earliest deadline, and none that stays."""
    departures: dict[str, Departure] = {}
    shown = {each.host: each for each in before}
    for verdict in leaving:
        if verdict.host is None or verdict.host.name in staying:
            continue
        name, reason, deadline = verdict.host.name, verdict.reason, verdict.deadline
        known = departures.get(name)
        if known is None or _or(deadline, float("inf")) < _or(known.deadline, float("inf")):
            was = shown.get(name)
            same = was is not None and (was.reason, was.deadline) == (reason, deadline)
            departures[name] = was if was is not None and same else Departure(name, reason, deadline)
    return tuple(departures.values())


def _causes(before: DampingState, after: DampingState, facts: DampingFacts) -> tuple[tuple[str, float], ...]:
    """Does not count delayed changes when they are published: their latency is that of the delay."""
    causes = []
    gone = before.published.keys() - after.published.keys()
    some = len(before.published) - len(gone) < len(after.published)
    come = after.published.keys() - before.published.keys() if some else ()
    if facts.seen_at is not None and not gone <= before.silent.keys():
        causes.append((REMOVAL, facts.seen_at))
    since = [at for uid in come if (at := before.usable_since.get(uid, facts.seen_at)) is not None]
    if since and after.started:
        causes.append((ADDITION, min(since)))
    return tuple(causes)


def _reason(after: DampingState, found: _Pods, *, damped: int) -> str:
    parts = [
        (len(found.to_probe), "waiting for the probe"),
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
