"""The signals that a node, a pod or a job is about to go: a table of rows, and how they are found. Pure.

How clusters and clouds mark what goes is data: a new signal is one row at the end of this file. Tests then require its
row in ``docs/kubernetes.md`` and its case in ``tests/unit/discover/verdicts/test_signals.py``. Rows name no effects of
taints, because the keys are unique and some providers have changed the effects. :mod:`discover.verdicts.signal_config`
reads a user's own rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from discover.pods.views import NOTHING, Condition, NodeView, PodView, Taint


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
    """One row of the table."""

    name: str
    object: str
    """One of :data:`OBJECTS`."""
    kind: str
    """One of :data:`KINDS`."""
    key: str
    """The key of the taint, label or annotation, the type of the condition, or the name of the field."""
    category: SignalClass
    says: str
    """The text for people."""
    value: str | None = None
    """This field and the next four restrict the signal; None, () and "" match everything."""
    effect: str | None = None
    status: str | None = None
    reasons: tuple[str, ...] = ()
    message: str = ""
    """A part of the object's message."""
    only_on: tuple[tuple[str, str], ...] = ()
    """Labels that the object must also have."""
    evidence: Evidence = Evidence.NOTICE
    deadline: Deadline | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A signal that an object has."""

    signal: Signal
    since: float | None = None
    """In Unix seconds, None if the server gives no time."""
    detail: str = ""
    """Its reason or value."""

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


# --- the built-in rows


GONE, IMMINENT, ADVISORY, NOTE = SignalClass.GONE, SignalClass.IMMINENT, SignalClass.ADVISORY, SignalClass.NOTE
ABSENCE: Final = Evidence.ABSENCE
VALUE: Final = Deadline("epoch-value")
TAINT, CONDITION = "taint-time", "condition-time"


def _pod(name: str, kind: str, key: str, category: SignalClass, says: str, **more: Any) -> Signal:
    return Signal(name=name, object="pod", kind=kind, key=key, category=category, says=says, **more)


def _node(name: str, kind: str, key: str, category: SignalClass, says: str, **more: Any) -> Signal:
    return Signal(name=name, object="node", kind=kind, key=key, category=category, says=says, **more)


def _taint(name: str, key: str, category: SignalClass, says: str, **more: Any) -> Signal:
    return _node(name, "taint", key, category, says, **more)


def _job(name: str, key: str, says: str) -> Signal:
    return Signal(name=name, object="job", kind="annotation", key=key, category=NOTE, says=says)


# fmt: off
KUBERNETES: Final = (
    _pod("pod-deleted", "field", "deletionTimestamp", IMMINENT, "is being deleted", deadline=VALUE),
    _pod("pod-terminated-by-kubelet", "condition", "DisruptionTarget", GONE, "was ended by its kubelet",
         status="True", reasons=("TerminationByKubelet",)),
    _pod("pod-disruption", "condition", "DisruptionTarget", IMMINENT, "is about to be evicted", status="True",
         deadline=Deadline(CONDITION, grace=True)),
    _pod("pod-evicted", "field", "phase", GONE, "was evicted or shut down with its node", value="Failed",
         reasons=("Evicted", "Terminated")),
    _node("gke-spot-shutdown", "condition", "Ready", IMMINENT, "is a spot instance that GKE shuts down",
          status="False", message="node is shutting down", only_on=(("cloud.google.com/gke-spot", "true"),),
          deadline=Deadline(CONDITION, 15)),
    _node("node-shutdown", "condition", "Ready", IMMINENT, "is shutting down", status="False",
          message="node is shutting down"),
    _node("node-not-ready", "condition", "Ready", IMMINENT, "is not ready", status="False", evidence=ABSENCE),
    _node("node-unknown", "condition", "Ready", IMMINENT, "sends no status", status="Unknown", evidence=ABSENCE),
    _taint("node-unreachable", "node.kubernetes.io/unreachable", IMMINENT, "sends no status", evidence=ABSENCE),
    _taint("node-not-ready-taint", "node.kubernetes.io/not-ready", IMMINENT, "is not ready", evidence=ABSENCE),
    _taint("node-out-of-service", "node.kubernetes.io/out-of-service", GONE, "is out of service"),
    _taint("node-cloud-shutdown", "node.cloudprovider.kubernetes.io/shutdown", GONE, "is shut down, its cloud says"),
    _node("node-gone", "field", "exists", GONE, "does not exist any more", value="false", evidence=ABSENCE),
    _node("node-cordoned", "field", "unschedulable", ADVISORY, "is cordoned", value="true"),
    _taint("node-unschedulable", "node.kubernetes.io/unschedulable", ADVISORY, "is cordoned"),
    _taint("node-memory-pressure", "node.kubernetes.io/memory-pressure", ADVISORY, "is short of memory"),
    _taint("node-disk-pressure", "node.kubernetes.io/disk-pressure", ADVISORY, "is short of disk space"),
    _taint("node-pid-pressure", "node.kubernetes.io/pid-pressure", ADVISORY, "is short of process ids"),
    _taint("node-network", "node.kubernetes.io/network-unavailable", ADVISORY, "has no network"),
)


AUTOSCALERS: Final = (
    _taint("autoscaler-deleting", "ToBeDeletedByClusterAutoscaler", IMMINENT,
           "is being removed by Cluster Autoscaler", deadline=Deadline("epoch-value", grace=True)),
    _taint("autoscaler-candidate", "DeletionCandidateOfClusterAutoscaler", ADVISORY,
           "may be removed by Cluster Autoscaler"),
    _taint("karpenter-disrupted", "karpenter.sh/disrupted", IMMINENT, "is being removed by Karpenter"),
    _taint("karpenter-disrupting", "karpenter.sh/disruption", IMMINENT, "is being removed by Karpenter",
           value="disrupting"),
)


_NTH: Final = "aws-node-termination-handler"
_GKE: Final = "cloud.google.com"
_ARENA: Final = "job-supervisor.kube-ai.io"


CLOUDS: Final = (
    _taint("aws-spot", f"{_NTH}/spot-itn", IMMINENT, "is a spot instance that AWS takes back",
           deadline=Deadline(TAINT, 120)),
    _taint("aws-asg", f"{_NTH}/asg-lifecycle-termination", IMMINENT, "is being ended by its AWS auto scaling group"),
    _taint("aws-maintenance", f"{_NTH}/scheduled-maintenance", ADVISORY, "is due for maintenance by AWS"),
    _taint("aws-rebalance", f"{_NTH}/rebalance-recommendation", ADVISORY, "is likely to be taken back by AWS"),
    _taint("gke-termination", f"{_GKE}/impending-node-termination", IMMINENT, "is about to be ended by GKE"),
    _node("gke-maintenance-time", "label", f"{_GKE}/scheduled-maintenance-time", ADVISORY,
          "is due for maintenance by GKE", deadline=VALUE),
    _node("gke-maintenance-latest", "label", f"{_GKE}/scheduled-maintenance-time-latest", ADVISORY,
          "is due for maintenance by GKE", deadline=VALUE),
    _node("gke-maintenance-active", "label", f"{_GKE}/active-node-maintenance", IMMINENT,
          "is under maintenance by GKE", value="ONGOING"),
    _taint("gke-maintenance-window", f"{_GKE}/maintenance-window-started", ADVISORY, "is in GKE's maintenance window"),
    _taint("aks-remediation", "remediator.kubernetes.azure.com/unschedulable", IMMINENT, "is being taken back by AKS",
           deadline=Deadline(TAINT, 30)),
    _taint("aks-remediation-old", "remediator.aks.microsoft.com/unschedulable", IMMINENT,
           "is being taken back by AKS", deadline=Deadline(TAINT, 30)),
    _node("aks-event", "condition", "VMEventScheduled", ADVISORY, "is due for an event of Azure's scheduler",
          status="True"),
    _taint("oke-termination", "ignore-taint.cluster-autoscaler.kubernetes.io/oke-impending-node-termination",
           IMMINENT, "is about to be ended by OKE"),
    _pod("eci-expired", "condition", "ContainerInstanceExpired", IMMINENT,
         "is a spot container instance that Alibaba Cloud takes back", status="True",
         deadline=Deadline(CONDITION, 180)),
    _pod("eci-released", "condition", "ContainerInstanceCreated", IMMINENT,
         "is a spot container instance that Alibaba Cloud takes back", reasons=("SpotToBeReleased",),
         deadline=Deadline(CONDITION, 180)),
    _pod("eci-bid-failed", "field", "phase", GONE, "is a spot container instance that Alibaba Cloud has taken back",
         value="Failed", reasons=("BidFailed",)),
)


NOTES: Final = (
    _pod("acs-best-effort", "label", "alibabacloud.com/compute-qos", NOTE, "best effort", value="best-effort"),
    _node("aks-spot", "label", "kubernetes.azure.com/scalesetpriority", NOTE, "spot node", value="spot"),
    _node("gke-spot", "label", f"{_GKE}/gke-spot", NOTE, "spot node", value="true"),
    _node("karpenter-spot", "label", "karpenter.sh/capacity-type", NOTE, "spot node", value="spot"),
    _job("arena-spot", f"{_ARENA}/spot-instance", "runs on spot instances"),
    _job("arena-max-wait", f"{_ARENA}/max-wait-time", "waits only so long for resources"),
    _job("arena-status", f"{_ARENA}/job-status", "has a status of the job supervisor"),
    _job("arena-suspended", f"{_ARENA}/job-suspended", "is suspended"),
)


# fmt: on

BUILT_IN: Final = Table((*KUBERNETES, *AUTOSCALERS, *CLOUDS, *NOTES))
