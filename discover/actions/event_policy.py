"""Decides which Events are written: about hosts that leave or are lost, pods that run and are not hosts, and deleted
pods. Pure.

Changes that come together make one Event, and each kind of Event has a rate limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from discover.actions.cluster_view import ClusterView
from discover.selection.verdicts import Grade, Verdict
from hvd_elastic_ext.core.hosts import Host


class Reason(Enum):
    """The reasons of Events. LEAVING: hosts were removed after a notice. LOST: hosts were removed without a notice.
    EXCLUDED: pods have run for long and are not hosts. REAPED: ``--reap-failed`` has deleted pods.
    """

    LEAVING = "HostsLeaving"
    LOST = "HostsLost"
    EXCLUDED = "HostsExcluded"
    REAPED = "WorkersReaped"

    @property
    def type(self) -> str:
        """The type of the Event in Kubernetes: ``Warning`` for hosts that were lost or excluded, else ``Normal``."""
        return "Warning" if self in (Reason.LOST, Reason.EXCLUDED) else "Normal"


@dataclass(frozen=True, slots=True)
class EventLimits:
    """Times in seconds. ``gather``: how long changes are collected before an Event. ``pause``: the least time between
    two Events of one kind. ``long``: after so long, a pod that runs and is not a host is reported. ``names``: how many
    pods a message names.
    """

    gather: float = 2.0
    pause: float = 30.0
    long: float = 300.0
    names: int = 5


@dataclass(frozen=True, slots=True)
class PodNote:
    """A pod that an Event reports. ``name``: of the pod, or of its host if the pod is gone. ``why`` is for people."""

    uid: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Message:
    """The reason and the text of one Event that is to be written."""

    kind: Reason
    text: str


@dataclass(frozen=True, slots=True)
class EventState:
    """State between looks; times in monotonic seconds.

    ``published``: the hosts of the last look, by UID; None before the first. ``waiting``: what will be reported.
    ``since``: from when each kind has waited. ``at``: when each kind was last reported. ``idle``: from when pods have
    run without being hosts, by UID. ``known``: the pods of ``idle`` that were reported.
    """

    published: Mapping[str, Host] | None = None
    waiting: Mapping[Reason, tuple[PodNote, ...]] = field(default_factory=dict)
    since: Mapping[Reason, float] = field(default_factory=dict)
    at: Mapping[Reason, float] = field(default_factory=dict)
    idle: Mapping[str, float] = field(default_factory=dict)
    known: frozenset[str] = frozenset()


def decide_events(
    now: float,
    state: EventState,
    view: ClusterView,
    *,
    reaped: Iterable[PodNote] = (),
    limits: EventLimits = EventLimits(),
) -> tuple[EventState, tuple[Message, ...], float | None]:
    """Decide which Events to write after a look: ``(state, messages, when to decide again without a new look)``.

    The last value is in monotonic seconds, or None. The first look reports no host as leaving or lost, because the
    hosts before it are not known. ``reaped``: pods that were deleted, to be reported too.
    """
    gone = _gone(state.published or {}, view)
    idle, excluded = _excluded(now, state, view, limits)
    news = {**gone, Reason.EXCLUDED: excluded, Reason.REAPED: tuple(reaped)}
    waiting = {kind: _again(state.waiting.get(kind, ()), view, kind) + news[kind] for kind in Reason}
    since = {kind: state.since.get(kind, now) for kind in Reason if waiting[kind]}
    due = {
        kind: max(start + limits.gather, state.at.get(kind, -limits.pause) + limits.pause)
        for kind, start in since.items()
    }
    ripe = [kind for kind, moment in due.items() if now >= moment]
    messages = tuple(Message(kind, _text(kind, waiting[kind], len(view.published), limits)) for kind in ripe)
    known = frozenset(uid for uid in state.known if uid in idle).union(item.uid for item in excluded)
    after = EventState(
        published=view.published,
        waiting={kind: items for kind, items in waiting.items() if items and kind not in ripe},
        since={kind: start for kind, start in since.items() if kind not in ripe},
        at={**state.at, **dict.fromkeys(ripe, now)},
        idle=idle,
        known=known,
    )
    ends = [moment for kind, moment in due.items() if kind not in ripe]
    ends += [start + limits.long for uid, start in idle.items() if uid not in known]
    return after, messages, min(ends, default=None)


def _gone(before: Mapping[str, Host], view: ClusterView) -> dict[Reason, tuple[PodNote, ...]]:
    missing = {} if before is view.published else {uid: before[uid] for uid in before if uid not in view.published}
    found: dict[Reason, list[PodNote]] = {Reason.LEAVING: [], Reason.LOST: []}
    if missing:
        seen = {verdict.pod.uid: verdict for verdict in view.verdicts if verdict.pod.uid in missing}
        for uid, host in missing.items():
            verdict = seen.get(uid)
            if verdict is None:
                found[Reason.LOST].append(PodNote(uid, host.name, "its pod is gone"))
            else:
                kind = Reason.LEAVING if verdict.grade is Grade.LEAVING else Reason.LOST
                found[kind].append(PodNote(uid, verdict.pod.key.name, view.reason(verdict)))
    return {kind: tuple(items) for kind, items in found.items()}


def _excluded(
    now: float, state: EventState, view: ClusterView, limits: EventLimits
) -> tuple[Mapping[str, float], tuple[PodNote, ...]]:
    idle = {
        verdict.pod.uid: state.idle.get(verdict.pod.uid, now)
        for verdict in view.verdicts
        if verdict.pod.uid not in view.published and _runs(verdict, view)
    }
    late = {uid for uid, start in idle.items() if now >= start + limits.long and uid not in state.known}
    if not late:
        return idle, ()
    found = [verdict for verdict in view.verdicts if verdict.pod.uid in late]
    return idle, tuple(PodNote(each.pod.uid, each.pod.key.name, view.reason(each)) for each in found)


def _runs(verdict: Verdict, view: ClusterView) -> bool:
    """Whether the pod could be a host: it belongs to the job, has started and is not leaving."""
    at_work = verdict.pod.phase in ("Running", "Unknown") and verdict.grade is not Grade.LEAVING
    return at_work and verdict.pod.deleting is None and view.owns(verdict)


def _again(items: tuple[PodNote, ...], view: ClusterView, kind: Reason) -> tuple[PodNote, ...]:
    """Return what is still to be reported: hosts that have come back need no report."""
    if kind is Reason.REAPED or not items:
        return items
    return tuple(item for item in items if item.uid not in view.published)


LONGEST: Final = 1000
"""Most characters of a message. The API takes 1024."""


def _text(kind: Reason, items: tuple[PodNote, ...], left: int, limits: EventLimits) -> str:
    count, one = len(items), len(items) == 1
    match kind:
        case Reason.LEAVING:
            what = f"{count} host{' is' if one else 's are'} leaving, {left} left"
        case Reason.LOST:
            what = f"{count} host{' is' if one else 's are'} lost, {left} left"
        case Reason.EXCLUDED:
            pods = "pod has" if one else "pods have"
            hosts = "is not a host" if one else "are not hosts"
            what = f"{count} {pods} run for {limits.long / 60:.0f} minutes and {hosts}"
        case Reason.REAPED:
            what = f"deleted {count} pod{'' if one else 's'}, so that the job's controller makes new ones"
    chosen = sorted(items, key=lambda item: item.name)[: limits.names]
    named = ", ".join(f"{item.name} ({item.why})" for item in chosen)
    more = f" and {count - limits.names} more" if count > limits.names else ""
    room = LONGEST - len(what) - len(more) - 2
    return f"{what}: {named if len(named) <= room else named[: room - 1] + '…'}{more}"
