"""Judges the pods of a job: which are hosts now, and if not, why. Pure, except for the memory of the selector.

:func:`verdict_of` judges one pod by its own state and by the signals of the pod, its node and its job.
:class:`Selector` does so for all pods at each look. It keeps the verdict of a pod while the objects behind it are the
same, and it remembers what no object says: when a signal was first seen, and since when a node has been unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from types import MappingProxyType
from typing import Final

from discover.pods.operators import PRICE_ANNOTATION, HostRules, JobView, host_name, life_of, slots_of
from discover.pods.views import ClusterSnapshot, Container, Key, NodeView, PodView
from discover.verdicts.signals import Evidence, Finding, SignalClass, Table, job_signals, node_signals, pod_signals
from hvd_elastic_ext.core.hosts import Host
from hvd_elastic_ext.core.sequences import common_ends


class Grade(Enum):
    """USABLE: a host. LEAVING: it has a notice, and is removed at once. ABSENT: its node sends no reports, which also
    happens in an outage of the control plane. GONE: it has ended after a notice or because of it. UNFIT: no host.
    """

    USABLE = "usable"
    LEAVING = "leaving"
    ABSENT = "absent"
    GONE = "gone"
    UNFIT = "unfit"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one pod is now, and why."""

    pod: PodView
    grade: Grade
    reason: str
    host: Host | None = None
    """Always set for USABLE; for LEAVING, ABSENT and GONE if it is known; else None."""
    deadline: float | None = None
    """In Unix seconds."""
    advisory: str = ""
    """A warning with which this host may stay but may not be added; "" without one."""


@dataclass(frozen=True, slots=True)
class ActiveSignal:
    """A finding, and when it was first seen (Unix seconds)."""

    finding: Finding
    first_seen: float
    subject: str
    """``pod``, ``node NAME`` or ``job``."""

    def deadline(self, grace: float) -> float | None:
        """Return when the object will be gone, in Unix seconds; None if unknown. ``grace``: the pod's, in seconds."""
        return self.finding.deadline(first_seen=self.first_seen, grace=grace)

    def __str__(self) -> str:
        signal, detail = self.finding.signal, self.finding.detail
        # Reasons of conditions and values of the job's annotations help people. Values of taints and labels do not.
        telling = detail and (signal.kind == "condition" or signal.object == "job")
        return f"{self.subject} {signal.says}" + (f" ({detail})" if telling else "")

    @property
    def note(self) -> str:
        """The text to show beside a usable host."""
        return str(self) if self.finding.signal.object == "job" else self.finding.signal.says


_FOLLOWS: Final = {Grade.LEAVING: "imminent", Grade.ABSENT: "absent"}


def warnings_of(verdicts: Iterable[Verdict]) -> Mapping[tuple[str, str], int]:
    """Return how many pods are under each warning, by its ``(source, class)``.

    Sources: ``pod``, ``node``, ``job``. Classes: ``imminent`` (the pod goes), ``advisory`` (a published one stays, but
    a new one is not added), ``absent`` (the pod is silent).
    """
    counts: Counter[tuple[str, str]] = Counter()
    usable = Grade.USABLE
    for each in verdicts:
        if each.grade is not usable:
            if (follows := _FOLLOWS.get(each.grade)) is not None:
                counts[_source(each.reason), follows] += 1
        elif each.advisory:
            counts[_source(each.advisory), "advisory"] += 1
    return counts


def _source(reason: str) -> str:
    return next((place for place in ("node", "job") if reason.startswith(f"{place} ")), "pod")


def verdict_of(pod: PodView, signs: tuple[ActiveSignal, ...], rules: HostRules, job: JobView | None = None) -> Verdict:
    """Judge a pod. ``signs``: the signals of the pod, its node and its job."""
    early = _no_host(pod, signs, rules, job)
    if early and not _ended_by_notice(pod, signs, job):
        return Verdict(pod, Grade.UNFIT, early)
    host, note, problem = _host(pod, rules, job)
    if early:  # name the host, so that the launcher does not blame the pod or its node for the end
        return Verdict(pod, Grade.GONE, early, host)
    serious = [sign for sign in signs if sign.finding.signal.category in (SignalClass.GONE, SignalClass.IMMINENT)]
    notices = [sign for sign in serious if sign.finding.signal.evidence is Evidence.NOTICE]
    if notices:
        deadlines = [moment for sign in notices if (moment := sign.deadline(pod.grace)) is not None]
        return Verdict(pod, Grade.LEAVING, _joined(notices), host, min(deadlines, default=None))
    if serious or pod.phase == "Unknown":
        return Verdict(pod, Grade.ABSENT, _joined(serious) or "pod sends no status (phase Unknown)", host)
    grade, reason = _readiness(pod)
    if grade is not Grade.USABLE:
        return Verdict(pod, grade, reason, host if grade is Grade.ABSENT else None)
    if host is None:
        return Verdict(pod, Grade.UNFIT, problem)
    notes = [sign.note for sign in signs if sign.finding.signal.category is SignalClass.NOTE]
    advisory = _joined([sign for sign in signs if sign.finding.signal.category is SignalClass.ADVISORY], when=True)
    reason = "; ".join(dict.fromkeys(filter(None, ["ready", *notes, note])))
    return Verdict(pod, Grade.USABLE, reason, host, advisory=advisory)


def _ended_by_notice(pod: PodView, signs: tuple[ActiveSignal, ...], job: JobView | None) -> bool:
    signals = [sign.finding.signal for sign in signs]
    gone = any(signal.category is SignalClass.GONE and signal.evidence is Evidence.NOTICE for signal in signals)
    return gone and pod.phase == "Failed" and not _is_of_another_job(pod, job)


def _is_of_another_job(pod: PodView, job: JobView | None) -> bool:
    return job is not None and bool(job.uid) and pod.owner != job.uid


def _no_host(pod: PodView, signs: tuple[ActiveSignal, ...], rules: HostRules, job: JobView | None) -> str:
    """Return why a pod is not a host, independent of its signals; "" if it runs by its last report."""
    if _is_of_another_job(pod, job):
        return "pod is not this job's: another object controls it, or none does"
    if pod.phase == "Failed":
        gone = [sign for sign in signs if sign.finding.signal.category is SignalClass.GONE]
        what = _joined(gone) or f"pod has failed{_ending(pod.reason, pod.containers)}"
        return "; ".join(filter(None, [what, rules.operator.advice]))
    if pod.phase == "Succeeded":
        return "pod has ended, with exit code 0"
    if not pod.node:
        scheduled = pod.condition("PodScheduled")
        detail = scheduled.message if scheduled is not None and scheduled.status == "False" else ""
        return _with("pod waits for a node", detail)
    if pod.phase not in ("Running", "Unknown"):
        return "pod is being started"
    return ""


def _ending(reason: str, containers: tuple[Container, ...]) -> str:
    codes = [f"{each.name}: exit code {each.finished}" for each in containers if each.finished]
    detail = ", ".join(filter(None, [reason, *codes]))
    return f" ({detail})" if detail else ""


def _readiness(pod: PodView) -> tuple[Grade, str]:
    ready = pod.condition("Ready")
    if ready is None:
        return Grade.UNFIT, "pod is not ready yet"
    if ready.status == "True":
        return Grade.USABLE, ""
    containers = pod.condition("ContainersReady")
    # A kubelet gives a reason when it sets Ready to False. If the kubelet sends no reports, the node controller sets
    # Ready to False without a reason, and does not change ContainersReady. It may mark the node later.
    if ready.status == "Unknown" or (not ready.reason and containers is not None and containers.status == "True"):
        return Grade.ABSENT, f"node {pod.node} sends no status"
    return Grade.UNFIT, _with("pod is not ready", ready.message or ready.reason)


def _host(pod: PodView, rules: HostRules, job: JobView | None) -> tuple[Host | None, str, str]:
    """Return ``(host, note on its slots, why there is no host)``."""
    try:
        slots, note = slots_of(pod, rules, job)
        price = pod.annotations.get(PRICE_ANNOTATION, "")
        return Host(host_name(pod, rules), slots, pod.uid, pod.node, life_of(pod, rules), price), note, ""
    except ValueError as problem:
        return None, "", str(problem)


def _joined(signs: Iterable[ActiveSignal], *, when: bool = False) -> str:
    """Return all signals in one line: each text once, with its detail if one of the signals has it. ``when``: with
    their deadlines.
    """
    texts = []
    for sign in signs:
        moment = sign.deadline(0.0) if when else None
        texts.append(str(sign) if moment is None else f"{sign}, {_time(moment)}")
    return "; ".join(text for text in dict.fromkeys(texts) if not any(more.startswith(f"{text} (") for more in texts))


_READABLE: Final = 200
"""Most characters that are kept of a message of Kubernetes."""


def _with(what: str, detail: str) -> str:
    detail = " ".join(detail.split())
    return f"{what}: {detail if len(detail) <= _READABLE else detail[: _READABLE - 1] + '…'}" if detail else what


def _time(moment: float) -> str:
    try:
        return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # a label of a node may have any number
        return f"{moment:.0f} s after 1970"


# --- signals of nodes


UNKNOWN_NODE_GRACE: Final = 10.0
"""Seconds for which a pod's node may be unknown, because nodes and pods arrive over two connections."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeSignals:
    """The signals of a node. It is the same object until they change."""

    signs: tuple[ActiveSignal, ...] = ()


NO_SIGNALS: Final = NodeSignals()


class NodeSignalTracker:
    """Keeps the signals of the nodes that pods run on.

    It remembers when signals without a time of their own were first seen, and when nodes were first missing.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._held: dict[str, tuple[NodeView | None, NodeSignals]] = {}
        """Each node as it was last looked at (None: it does not exist), and its signals."""
        self._missed: dict[str, float] = {}
        """Since when nodes have been unknown, in Unix seconds."""
        self._last: tuple[Mapping[str, NodeView] | None, Set[str], dict[str, NodeSignals]] = (None, frozenset(), {})
        """Nodes and used ones of the last look, and what it has returned."""

    def follow(
        self, now: float, nodes: Mapping[str, NodeView] | None, *, used: Set[str], exists: Mapping[str, bool]
    ) -> dict[str, NodeSignals]:
        """Look at the ``nodes``; return the signals of those that are followed, by name. ``now`` is in Unix seconds.

        ``nodes``: None if the daemon may not read them. ``used``: nodes that pods run on. ``exists``: see
        :meth:`discover.verdicts.verdicts.Selector.select`.
        """
        if nodes is None:
            self._held, self._missed, self._last = {}, {}, (None, frozenset(), {})
            return {}
        if nodes is self._last[0] and used == self._last[1] and not self._missed:
            return self._last[2]
        held: dict[str, tuple[NodeView | None, NodeSignals]] = {}
        missed: dict[str, float] = {}
        for name in used:
            node, before = nodes.get(name), self._held.get(name)
            if node is None:
                since = missed[name] = min(now, self._missed.get(name, now))
                if now < since + UNKNOWN_NODE_GRACE or exists.get(name) is not False:
                    if before is not None:
                        # Its last signals still count, so that a node that is deleted does not become usable again.
                        held[name] = before
                    continue
            if before is not None and before[0] is node:
                held[name] = before
            else:
                held[name] = (node, self._signals_of(now, name, node, before or (None, NO_SIGNALS)))
        self._held, self._missed = held, missed
        self._last = nodes, used, {name: signals for name, (_, signals) in held.items()}
        return self._last[2]

    def missing(self, now: float) -> tuple[float | None, tuple[str, ...]]:
        """Return when the next node will have been missing for too long, None without one, and which nodes have been.

        Times are in Unix seconds.
        """
        ends = {name: since + UNKNOWN_NODE_GRACE for name, since in self._missed.items()}
        missing = tuple(sorted(name for name, end in ends.items() if now >= end))
        return min((end for end in ends.values() if now < end), default=None), missing

    def _signals_of(
        self, now: float, name: str, node: NodeView | None, before: tuple[NodeView | None, NodeSignals]
    ) -> NodeSignals:
        known, signals = before
        same = known is not None and node is not None and known.uid == node.uid
        signs = with_first_seen(node_signals(node, self._table), f"node {name}", now, signals.signs if same else ())
        return signals if signs == signals.signs else NodeSignals(signs)


def with_first_seen(
    findings: Iterable[Finding], subject: str, now: float, earlier: tuple[ActiveSignal, ...]
) -> tuple[ActiveSignal, ...]:
    """Return ``findings`` with the time at which each was first seen: ``now``, or the time in ``earlier``."""
    since = {sign.finding.signal.name: sign.first_seen for sign in earlier}
    return tuple(ActiveSignal(finding, since.get(finding.signal.name, now), subject) for finding in findings)


# --- all pods


_NO_ANSWERS: Final[Mapping[str, bool]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Selection:
    """The verdicts of one look."""

    verdicts: tuple[Verdict, ...] = ()
    """In order of the pods' keys."""
    again_at: float | None = None
    """When they may change without an event, in Unix seconds."""
    missing: tuple[str, ...] = ()
    """Nodes on which pods run, but that have been unknown for longer than :data:`UNKNOWN_NODE_GRACE`. The caller finds
    out whether they exist, and passes that to the next selections.
    """


@dataclass(slots=True, eq=False)
class _Judged:
    """A verdict and the facts behind it. The verdict stays valid until these are other objects."""

    pod: PodView
    signals: NodeSignals
    job: JobView | None
    signs: tuple[ActiveSignal, ...]
    """The signals of the pod itself, with the times at which they were first seen."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class _Look:
    """The facts of a look, and what follows from them."""

    pods: tuple[PodView, ...] = ()
    of_nodes: Mapping[str, NodeSignals] = field(default_factory=dict)
    job: JobView | None = None
    used: Set[str] = frozenset()
    """Nodes that pods run on."""
    verdicts: tuple[Verdict, ...] = ()
    """One for each pod, by itself."""
    shared: bool = False
    """A pod uses the network of its node."""


_RUNNING: Final = ("Running", "Unknown")


class Selector:
    """Judges all pods of a job at each call. It judges a pod anew only if the pod, its node's signals or the job are
    other objects than before. What follows from many pods is taken from the last look as far as the pods at both ends
    are the same objects: if one of a thousand pods changes, a look takes a tenth of a millisecond.

    It remembers when signals without a time of their own were first seen, and when nodes were first missing. Everything
    else comes from the snapshot.
    """

    def __init__(self, rules: HostRules, table: Table) -> None:
        self._rules = rules
        self._table = table
        self._job: JobView | None = None
        self._of_job: tuple[ActiveSignal, ...] = ()
        self._judged: dict[str, _Judged] = {}
        """By UID."""
        self._nodes = NodeSignalTracker(table)
        self._last = _Look()

    def select(
        self,
        wall_now: float,
        snapshot: ClusterSnapshot,
        *,
        node_exists: Mapping[str, bool] = _NO_ANSWERS,
        job: JobView | None = None,
    ) -> Selection:
        """Judge every pod.

        ``wall_now`` is in Unix seconds. ``node_exists``: whether nodes of :attr:`Selection.missing` exist, as far as it
        is known; False if the server has answered 404. ``job``: the object above the pods, if it can be read.
        """
        pods, last = tuple(snapshot.pods.values()), self._last
        start, end = common_ends(last.pods, pods)
        old, new = last.pods[start : len(last.pods) - end], pods[start : len(pods) - end]
        before, after = _used(old), _used(new)
        used = last.used | after if before <= after else _used(pods)
        of_nodes = self._nodes.follow(wall_now, snapshot.nodes, used=used, exists=node_exists)
        if job != self._job:
            self._take_in(wall_now, job)
        job = self._job
        shared = any(pod.host_network for pod in (pods if last.shared else new))
        if of_nodes != last.of_nodes or job is not last.job:
            start, end = 0, 0
        first, rest = last.verdicts[:start], last.verdicts[len(last.verdicts) - end :]
        verdicts = (*first, *self._judge_all(wall_now, pods[start : len(pods) - end], of_nodes), *rest)
        if len(self._judged) > len(pods):
            for gone in self._judged.keys() - {pod.uid for pod in pods}:
                del self._judged[gone]
        self._last = _Look(pods, of_nodes, job, used, verdicts, shared)
        return Selection(_one_per_address(verdicts) if shared else verdicts, *self._nodes.missing(wall_now))

    def _judge_all(self, now: float, pods: Iterable[PodView], of_nodes: Mapping[str, NodeSignals]) -> list[Verdict]:
        judged, job = self._judged, self._job
        verdicts = []
        for pod in pods:
            known, signals = judged.get(pod.uid), of_nodes.get(pod.node, NO_SIGNALS)
            if known is None or known.pod is not pod or known.signals is not signals or known.job is not job:
                known = judged[pod.uid] = self._judge(now, pod, signals, () if known is None else known.signs)
            verdicts.append(known.verdict)
        return verdicts

    def _take_in(self, now: float, job: JobView | None) -> None:
        same = job is not None and self._job is not None and job.uid == self._job.uid
        found = () if job is None else job_signals(job.labels, job.annotations, self._table)
        self._job, self._of_job = job, with_first_seen(found, "job", now, self._of_job if same else ())

    def _judge(self, now: float, pod: PodView, signals: NodeSignals, earlier: tuple[ActiveSignal, ...]) -> _Judged:
        signs = with_first_seen(pod_signals(pod, self._table), "pod", now, earlier)
        verdict = verdict_of(pod, (*signs, *signals.signs, *self._of_job), self._rules, self._job)
        return _Judged(pod, signals, self._job, signs, verdict)


def _used(pods: Iterable[PodView]) -> frozenset[str]:
    """Return the nodes that pods run on."""
    return frozenset([pod.node for pod in pods if pod.node and pod.phase in _RUNNING])


def _one_per_address(verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """Return the verdicts with one host for each node's address. Pods with hostNetwork share their node's ports, so
    only the first pod can listen on the port of ssh.
    """
    owners: dict[str, PodView] = {}
    for verdict in verdicts:
        pod = verdict.pod
        if pod.host_network and pod.host_ip and pod.phase == "Running":
            owner = owners.setdefault(pod.host_ip, pod)
            if _age(pod) < _age(owner):
                owners[pod.host_ip] = pod
    if not owners:
        return verdicts
    return tuple(_unless_taken(verdict, owners.get(verdict.pod.host_ip)) for verdict in verdicts)


def _unless_taken(verdict: Verdict, owner: PodView | None) -> Verdict:
    pod = verdict.pod
    if owner is None or not pod.host_network or verdict.grade is not Grade.USABLE or owner.key == pod.key:
        return verdict
    reason = (
        f"pod shares the network of node {pod.node} with pod {owner.key.name}, which has the port of ssh; "
        "keep them apart with podAntiAffinity, or leave hostNetwork out"
    )
    return Verdict(pod, Grade.UNFIT, reason)


def _age(pod: PodView) -> tuple[float, Key]:
    return (float("inf") if pod.started is None else pod.started, pod.key)
