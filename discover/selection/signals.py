"""How signals of nodes, pods and jobs are read: signals are data. Pure.

``signal_table.py`` has the built-in rows; ``signal_config.py`` reads a user's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from discover.selection.objects import NOTHING, Condition, NodeView, PodView, Taint


class SignalClass(Enum):
    """What follows from a signal.

    GONE: it has ended. IMMINENT: it will end soon. ADVISORY: it may end; hosts stay, and none are added. NOTE: a
    property that people want to see, no warning.
    """

    GONE = "gone"
    IMMINENT = "imminent"
    ADVISORY = "advisory"
    NOTE = "note"


class Evidence(Enum):
    """NOTICE: it was announced. ABSENCE: its reports have stopped, as they also do in an outage of the control
    plane."""

    NOTICE = "notice"
    ABSENCE = "absence"


OBJECTS: Final = ("pod", "node", "job")
KINDS: Final = ("taint", "condition", "label", "annotation", "field")
FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pod": ("deletionTimestamp", "phase"),
    "node": ("unschedulable", "exists"),
    "job": (),
}
"""Signals that are no taint, condition, label or annotation, by object."""

BASES: Final[Mapping[str, tuple[str, ...]]] = {
    "epoch-value": ("taint", "label", "annotation", "field"),
    "taint-time": ("taint",),
    "condition-time": ("condition",),
    "now": KINDS,
}
"""What deadlines are counted from, and for which kinds of signal.

``epoch-value``: the value itself, in Unix seconds. ``taint-time``, ``condition-time``: since when it is there.
``now``: when it was first seen; so are taints without a time (the server sets it for NoExecute only).
"""


@dataclass(frozen=True, slots=True)
class Deadline:
    """``base`` is one of :data:`BASES`; ``seconds`` are added, and the pod's grace period if ``grace``."""

    base: str
    seconds: float = 0.0
    grace: bool = False

    def __str__(self) -> str:
        return self.base + ("+grace" if self.grace else f"+{self.seconds:g}" if self.seconds else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One row of the table.

    ``object`` is one of :data:`OBJECTS`, ``kind`` of :data:`KINDS`, ``key`` the key of the taint, label or annotation,
    the type of the condition, or the field's name. ``value``, ``effect``, ``status``, ``reasons`` and ``message`` (a
    part of it) narrow it down; None and () match anything. ``only_on``: labels that the object must have, too.
    ``says``: what people read.
    """

    name: str
    object: str
    kind: str
    key: str
    category: SignalClass
    says: str
    value: str | None = None
    effect: str | None = None
    status: str | None = None
    reasons: tuple[str, ...] = ()
    message: str = ""
    only_on: tuple[tuple[str, str], ...] = ()
    evidence: Evidence = Evidence.NOTICE
    deadline: Deadline | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A signal that is set. ``since``: Unix seconds, where the server says it; ``detail``: its reason or value."""

    signal: Signal
    since: float | None = None
    detail: str = ""

    def deadline(self, *, first_seen: float, grace: float) -> float | None:
        """Return the Unix seconds by which the object is gone; None if unknown."""
        rule = self.signal.deadline
        if rule is None:
            return None
        start = _epoch(self.detail) if rule.base == "epoch-value" else self.since
        if rule.base == "now" or (start is None and rule.base != "epoch-value"):
            start = first_seen
        return None if start is None else start + rule.seconds + (grace if rule.grace else 0.0)


@dataclass(frozen=True, slots=True)
class Table:
    """All rows. Of several rows about one key of an object the worst counts; of equally bad ones, the first."""

    signals: tuple[Signal, ...]
    _by_key: dict[tuple[str, str], dict[str, list[Signal]]] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        by_key: dict[tuple[str, str], dict[str, list[Signal]]] = {}
        for signal in self.signals:
            by_key.setdefault((signal.object, signal.kind), {}).setdefault(signal.key, []).append(signal)
        object.__setattr__(self, "_by_key", by_key)

    def about(self, what: str, kind: str) -> Mapping[str, list[Signal]]:
        """Rows about one of :data:`OBJECTS` and :data:`KINDS`, by key."""
        return self._by_key.get((what, kind), {})


def pod_signals(pod: PodView, table: Table) -> tuple[Finding, ...]:
    """Return every signal of a pod itself, the worst first."""
    fields = {"phase": pod.phase}
    if pod.deleting is not None:
        fields["deletionTimestamp"] = repr(pod.deleting)
    return _sorted(
        [
            *_conditions_found(table.about("pod", "condition"), pod.conditions, pod.labels),
            *_values_found(table.about("pod", "label"), pod.labels, pod.labels),
            *_values_found(table.about("pod", "annotation"), pod.annotations, pod.labels),
            *_values_found(table.about("pod", "field"), fields, pod.labels, reason=pod.reason),
        ]
    )


def node_signals(node: NodeView | None, table: Table) -> tuple[Finding, ...]:
    """Return every signal of a node, the worst first. None is a node that is known not to exist."""
    if node is None:
        return _sorted(_values_found(table.about("node", "field"), {"exists": "false"}, NOTHING))
    fields = {"exists": "true", "unschedulable": "true" if node.unschedulable else "false"}
    return _sorted(
        [
            *_taints_found(table.about("node", "taint"), node.taints, node.labels),
            *_conditions_found(table.about("node", "condition"), node.conditions, node.labels),
            *_values_found(table.about("node", "label"), node.labels, node.labels),
            *_values_found(table.about("node", "annotation"), node.annotations, node.labels),
            *_values_found(table.about("node", "field"), fields, node.labels),
        ]
    )


def job_signals(labels: Mapping[str, str], annotations: Mapping[str, str], table: Table) -> tuple[Finding, ...]:
    """Return every signal of the object above the pods."""
    return _sorted(
        [
            *_values_found(table.about("job", "label"), labels, labels),
            *_values_found(table.about("job", "annotation"), annotations, labels),
        ]
    )


def _taints_found(
    rows: Mapping[str, list[Signal]], taints: tuple[Taint, ...], labels: Mapping[str, str]
) -> Iterator[Finding]:
    for taint in taints:
        for signal in rows.get(taint.key, ()):
            fits = signal.value in (None, taint.value) and signal.effect in (None, taint.effect)
            if fits and _is_on(signal, labels):
                yield Finding(signal, taint.added, taint.value)


def _conditions_found(
    rows: Mapping[str, list[Signal]], conditions: tuple[Condition, ...], labels: Mapping[str, str]
) -> Iterator[Finding]:
    for condition in conditions:
        for signal in rows.get(condition.type, ()):
            fits = signal.status in (None, condition.status) and signal.message in condition.message
            if fits and (not signal.reasons or condition.reason in signal.reasons) and _is_on(signal, labels):
                yield Finding(signal, condition.since, condition.reason)


def _values_found(
    rows: Mapping[str, list[Signal]], values: Mapping[str, str], labels: Mapping[str, str], *, reason: str = ""
) -> Iterator[Finding]:
    for key, signals in rows.items():
        value = values.get(key)
        for signal in signals if value is not None else ():
            fits = signal.value in (None, value) and (not signal.reasons or reason in signal.reasons)
            if fits and _is_on(signal, labels):
                yield Finding(signal, None, reason if signal.reasons else value or "")


def _is_on(signal: Signal, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in signal.only_on)


_RANK: Final = {each: rank for rank, each in enumerate(SignalClass)}


def _sorted(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first. Of several rows about one key only the first counts: the table has the more specific one
    first."""
    ranked = sorted(found, key=lambda each: (_RANK[each.signal.category], each.signal.evidence is Evidence.ABSENCE))
    first: dict[tuple[str, str], Finding] = {}
    for each in ranked:
        first.setdefault((each.signal.kind, each.signal.key), each)
    return tuple(first.values())


_FIRST_EPOCH, _LAST_EPOCH = 1e9, 1e11
"""The range from September 2001 to the year 5138. Other numbers are no Unix seconds."""


def _epoch(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if _FIRST_EPOCH <= value <= _LAST_EPOCH else None
