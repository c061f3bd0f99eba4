"""Makes the verdicts on all pods from the known objects of a cluster. Pure except for its memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from discover.selection.node_signals import NodeSignals, NodeSignalTracker, with_first_seen
from discover.selection.objects import ClusterSnapshot, Key, PodView, different
from discover.selection.operators import HostRules, JobView
from discover.selection.signals import Table, job_signals, pod_signals
from discover.selection.verdict_index import VerdictGroups, VerdictIndex
from discover.selection.verdicts import ActiveSignal, Grade, Verdict, verdict_of

_NO_ANSWERS: Final[Mapping[str, bool]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Selection:
    """``verdicts`` are in order of the pods' keys. ``again_at``: when they may change without an event (Unix seconds).

    ``missing``: nodes on which pods run, but that have been unknown for longer than :data:`UNKNOWN_NODE_GRACE`. The
    caller finds out whether they exist, and passes that to the next selections. ``groups``: use :func:`groups_of`.
    """

    verdicts: tuple[Verdict, ...] = ()
    again_at: float | None = None
    missing: tuple[str, ...] = ()
    groups: VerdictGroups | None = field(default=None, compare=False, repr=False)


def groups_of(selection: Selection) -> VerdictGroups:
    """Return the groups of a selection's verdicts, and make them if the selection has none."""
    return VerdictGroups.of(selection.verdicts) if selection.groups is None else selection.groups


@dataclass(slots=True, eq=False)
class _Known:
    """A verdict and the facts behind it. The verdict stays valid until these change."""

    pod: PodView
    signals: NodeSignals
    signs: tuple[ActiveSignal, ...]
    verdict: Verdict

    def holds(self, pod: PodView, signals: NodeSignals) -> bool:
        """Whether the verdict still holds. Most pods are the same objects as before; after a list they may only be
        equal.
        """
        if self.pod is pod and self.signals is signals:
            return True
        if self.signals is not signals or self.pod != pod:
            return False
        self.pod = pod
        return True


_OUTDATED: Final = NodeSignals()
_RUNNING: Final = ("Running", "Unknown")


class Selector:
    """Judges all pods of a job at each call. A call only takes time for what has changed.

    It remembers when signals without a time of their own were first seen, and when nodes were first missing. Everything
    else comes from the snapshot.
    """

    def __init__(self, rules: HostRules, table: Table) -> None:
        self._rules = rules
        self._table = table
        self._job: JobView | None = None
        self._of_job: tuple[ActiveSignal, ...] = ()
        self._pods: Mapping[Key, PodView] = {}
        self._judged: dict[Key, _Known] = {}
        self._places = _PodsByNode()
        self._node_signals = NodeSignalTracker(table)
        self._register = VerdictIndex()
        self._shared = False

    def _judge_all(self) -> None:
        """Judge every pod the next time. The times at which signals were first seen stay, because no event reports them
        again.
        """
        self._judged = {key: each for key, each in self._judged.items() if key in self._pods}
        self._pods, self._places, self._register = {}, _PodsByNode(), VerdictIndex()
        self._node_signals.look_at_all()
        self._outdate()

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

        After an exception, the next selection judges every pod.
        """
        try:
            return self._select(wall_now, snapshot, node_exists, job)
        except BaseException:
            # Changes that were recorded but not judged would be lost, because they are not reported again.
            self._judge_all()
            raise

    def _select(
        self,
        now: float,
        snapshot: ClusterSnapshot,
        node_exists: Mapping[str, bool],
        job: JobView | None,
    ) -> Selection:
        before, self._pods = self._pods, snapshot.pods
        pods, nodes = snapshot.pods, snapshot.nodes
        due = set(different(before, pods, snapshot.changed))
        moved = {name for key in due for name in self._places.move(key, before.get(key), pods.get(key))}
        used = self._places.used
        for name in self._node_signals.follow(now, nodes, used=used, moved=moved, exists=node_exists):
            due.update(self._places.on(name))
        if job != self._job:
            self._take_in(now, job)
            due.update(self._outdate())
        self._register.update({key: self._verdict(now, key, pods.get(key)) for key in due})
        verdicts, missing = self._register.verdicts, self._node_signals.missing(now)
        if self._shared:
            return Selection(_one_per_address(verdicts), *missing)
        return Selection(verdicts, *missing, self._register.groups)

    def _take_in(self, now: float, job: JobView | None) -> None:
        same = job is not None and self._job is not None and job.uid == self._job.uid
        found = () if job is None else job_signals(job.labels, job.annotations, self._table)
        self._job, self._of_job = job, with_first_seen(found, "job", now, self._of_job if same else ())

    def _outdate(self) -> Iterable[Key]:
        """Make every verdict outdated, because the job's signals concern every pod."""
        for each in self._judged.values():
            each.signals = _OUTDATED
        return self._judged

    def _verdict(self, now: float, key: Key, pod: PodView | None) -> Verdict | None:
        known = self._judged.get(key)
        if pod is None:
            self._judged.pop(key, None)
            return None
        signals = self._node_signals.of(pod.node)
        if known is None or not known.holds(pod, signals):
            known = self._judged[key] = self._judge(now, pod, signals, known)
        return known.verdict

    def _judge(self, now: float, pod: PodView, signals: NodeSignals, known: _Known | None) -> _Known:
        earlier = known.signs if known is not None and known.pod.uid == pod.uid else ()
        signs = with_first_seen(pod_signals(pod, self._table), "pod", now, earlier)
        self._shared = self._shared or pod.host_network
        verdict = verdict_of(pod, (*signs, *signals.signs, *self._of_job), self._rules, self._job)
        return _Known(pod, signals, signs, verdict)


class _PodsByNode:
    """Which pods are on which node. ``used``: how many pods run on each node, without nodes that have none."""

    def __init__(self) -> None:
        self.used: dict[str, int] = {}
        self._on: dict[str, set[Key]] = {}

    def on(self, node: str) -> Iterable[Key]:
        return self._on.get(node, ())

    def move(self, key: Key, before: PodView | None, after: PodView | None) -> set[str]:
        was, now = _node_of(before), _node_of(after)
        if was == now:
            return set()
        if was[0]:
            self._leave(key, *was)
        if now[0]:
            self._enter(key, *now)
        return {name for name in (was[0], now[0]) if name}

    def _leave(self, key: Key, node: str, at_work: bool) -> None:
        there = self._on[node]
        there.discard(key)
        if not there:
            del self._on[node]
        if at_work:
            self.used[node] -= 1
            if not self.used[node]:
                del self.used[node]

    def _enter(self, key: Key, node: str, at_work: bool) -> None:
        self._on.setdefault(node, set()).add(key)
        if at_work:
            self.used[node] = self.used.get(node, 0) + 1


def _node_of(pod: PodView | None) -> tuple[str, bool]:
    """Return the pod's node, "" without one, and whether the pod runs there."""
    return ("", False) if pod is None else (pod.node, pod.phase in _RUNNING)


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
