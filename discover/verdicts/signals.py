"""Finds the signals of nodes, pods and jobs by a table of rows. Pure.

``signal_table.py`` has the built-in rows. ``signal_config.py`` reads a user's own rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from discover.selection.objects import NOTHING, Condition, NodeView, PodView, Taint


class SignalClass(Enum):
    """What follows from a signal.

    GONE: the object has ended. IMMINENT: it will end soon. ADVISORY: it may end; its hosts stay, but no new ones are
    added. NOTE: a property to show to people, no warning.
    """

    GONE = "gone"
    IMMINENT = "imminent"
    ADVISORY = "advisory"
    NOTE = "note"


class Evidence(Enum):
    """NOTICE: the end was announced. ABSENCE: the reports of the object have stopped. This also happens in an outage of
    the control plane.
    """

    NOTICE = "notice"
    ABSENCE = "absence"


OBJECTS: Final = ("pod", "node", "job")


KINDS: Final = ("taint", "condition", "label", "annotation", "field")


FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pod": ("deletionTimestamp", "phase"),
    "node": ("unschedulable", "exists"),
    "job": (),
}
"""For each object, the fields that a signal may read."""


BASES: Final[Mapping[str, tuple[str, ...]]] = {
    "epoch-value": ("taint", "label", "annotation", "field"),
    "taint-time": ("taint",),
    "condition-time": ("condition",),
    "now": KINDS,
}
"""The bases of deadlines, and the kinds of signal that may have each.

``epoch-value``: the value itself, in Unix seconds. ``taint-time``, ``condition-time``: when the taint was added, or
when the condition last changed. ``now``: when the signal was first seen. This is also the base of a taint or condition
without a time (the server sets a taint's time for NoExecute only).
"""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A rule for the time of a deadline: the time of ``base``, one of :data:`BASES`, plus ``seconds``, plus the pod's
    grace period if ``grace``.
    """

    base: str
    seconds: float = 0.0
    grace: bool = False

    def __str__(self) -> str:
        return self.base + ("+grace" if self.grace else f"+{self.seconds:g}" if self.seconds else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One row of the table.

    ``object``: one of :data:`OBJECTS`. ``kind``: one of :data:`KINDS`. ``key``: the key of the taint, label or
    annotation, the type of the condition, or the name of the field. ``value``, ``effect``, ``status``, ``reasons`` and
    ``message`` (a part of the object's message) restrict the signal; None, () and "" match everything. ``only_on``:
    labels that the object must also have. ``says``: the text for people.
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
    """A signal that an object has. ``since``: in Unix seconds, None if the server gives no time. ``detail``: its reason
    or value.
    """

    signal: Signal
    since: float | None = None
    detail: str = ""

    def deadline(self, *, first_seen: float, grace: float) -> float | None:
        """Return when the object will be gone, in Unix seconds; None if unknown. ``first_seen``: when the signal was
        first seen, in Unix seconds. ``grace``: the pod's grace period in seconds.
        """
        rule = self.signal.deadline
        if rule is None:
            return None
        start = _epoch(self.detail) if rule.base == "epoch-value" else self.since
        if rule.base == "now" or (start is None and rule.base != "epoch-value"):
            start = first_seen
        return None if start is None else start + rule.seconds + (grace if rule.grace else 0.0)


@dataclass(frozen=True, slots=True)
class Table:
    """All rows. If several rows with the same key match an object, the worst counts, and of equally bad ones the
    first.
    """

    signals: tuple[Signal, ...]
    _by_key: dict[tuple[str, str], dict[str, list[Signal]]] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        by_key: dict[tuple[str, str], dict[str, list[Signal]]] = {}
        for signal in self.signals:
            by_key.setdefault((signal.object, signal.kind), {}).setdefault(signal.key, []).append(signal)
        object.__setattr__(self, "_by_key", by_key)

    def about(self, what: str, kind: str) -> Mapping[str, list[Signal]]:
        """Return the rows by key. ``what``: one of :data:`OBJECTS`. ``kind``: one of :data:`KINDS`."""
        return self._by_key.get((what, kind), {})


def pod_signals(pod: PodView, table: Table) -> tuple[Finding, ...]:
    """Return all signals of a pod itself, the worst first."""
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
    """Return all signals of a node, the worst first. ``node``: None if it is known not to exist."""
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
    """Return all signals of the object above the pods, the worst first."""
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
    """Return the findings with the worst first, and only the first of each key. So a more specific row must come first
    in the table.
    """
    ranked = sorted(found, key=lambda each: (_RANK[each.signal.category], each.signal.evidence is Evidence.ABSENCE))
    first: dict[tuple[str, str], Finding] = {}
    for each in ranked:
        first.setdefault((each.signal.kind, each.signal.key), each)
    return tuple(first.values())


_FIRST_EPOCH, _LAST_EPOCH = 1e9, 1e11
"""From September 2001 to the year 5138. Numbers outside count as no Unix seconds."""


def _epoch(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if _FIRST_EPOCH <= value <= _LAST_EPOCH else None
