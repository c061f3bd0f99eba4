"""What is true of all pods now, from what is known of the cluster. Pure but for its memory of what it saw before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from discover.cluster import ClusterSnapshot, Key, NodeView, PodView
from discover.judging import Grade, Sign, Verdict, judge
from discover.operators import HostRules, JobView
from discover.signals import Finding, Table, judge_node, judge_pod

__all__ = ["TOLERANCE", "Grade", "Selection", "Selector", "Verdict"]

TOLERANCE: Final = 10.0
"""Seconds that a pod's node may be unknown: news of nodes and news of pods come over two connections."""

_NO_ANSWERS: Final[Mapping[str, bool]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Selection:
    """``verdicts`` are in order of the pods' keys. ``again_at``: Unix seconds at which time alone may change them.

    ``missing``: nodes that pods run on and that have been unknown for longer than :data:`TOLERANCE`. Whether they
    exist is to be asked for, and the answers given to the next selections, for as long as they are missing.
    """

    verdicts: tuple[Verdict, ...] = ()
    again_at: float | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Standing:
    """What is held of a node. It is the same object for as long as the same is held."""

    signs: tuple[Sign, ...] = ()


@dataclass(slots=True, eq=False)
class _Judged:
    """What was held of a pod, and what of: while that is the same, so is the verdict."""

    pod: PodView
    standing: _Standing
    signs: tuple[Sign, ...]
    verdict: Verdict

    def holds(self, pod: PodView, standing: _Standing) -> bool:
        """Whether it still does. Most pods are the very objects that they were; after a list they equal them."""
        if self.pod is pod and self.standing is standing:
            return True
        if self.standing is not standing or self.pod != pod:
            return False
        self.pod = pod
        return True


_NOTHING_HELD: Final = _Standing()
_OUTDATED: Final = _Standing()
_UNNAMED: Final[tuple[NodeView | None, _Standing]] = (None, _NOTHING_HELD)
_AT_WORK: Final = ("Running", "Unknown")


class Selector:
    """Judges all pods of a job, again and again; what has not changed in between costs next to nothing.

    It remembers when signals were first seen that do not say since when they are there, and since when nodes have
    been missing. All else follows from the snapshot, in whatever order events have led to it.
    """

    def __init__(self, rules: HostRules, table: Table) -> None:
        self._rules = rules
        self._table = table
        self._job: JobView | None = None
        self._judged: dict[Key, _Judged] = {}
        self._order: list[Key] = []
        self._shared = False
        self._nodes: dict[str, tuple[NodeView | None, _Standing]] = {}
        self._missed: dict[str, float] = {}

    def select(
        self,
        wall_now: float,
        snapshot: ClusterSnapshot,
        *,
        node_exists: Mapping[str, bool] = _NO_ANSWERS,
        job: JobView | None = None,
    ) -> Selection:
        """Judge every pod.

        ``wall_now`` is in Unix seconds. ``node_exists``: what was found out about :attr:`Selection.missing` nodes;
        False means that the server knows of none (404). ``job``: the object above the pods, where it may be read.

        Raises ``ValueError`` for a snapshot that is not whole: of that nothing can be said.
        """
        if snapshot.pods is None or not snapshot.whole:
            raise ValueError("pods or nodes have not been listed yet: nothing can be said of them")
        if job != self._job:
            self._job = job
            for each in self._judged.values():
                each.standing = _OUTDATED
        self._stand(wall_now, snapshot.pods, snapshot.nodes, node_exists)
        verdicts = tuple(self._verdict(wall_now, key, snapshot.pods[key]) for key in self._ordered(snapshot.pods))
        return Selection(_one_per_address(verdicts) if self._shared else verdicts, *self._waiting(wall_now))

    def _ordered(self, pods: Mapping[Key, PodView]) -> list[Key]:
        """The pods' keys, sorted; pods that are gone are forgotten."""
        if len(self._order) != len(pods) or not all(map(pods.__contains__, self._order)):
            self._order = sorted(pods)
            self._judged = {key: each for key in self._order if (each := self._judged.get(key)) is not None}
        return self._order

    def _verdict(self, now: float, key: Key, pod: PodView) -> Verdict:
        _, standing = self._nodes.get(pod.node, _UNNAMED)
        known = self._judged.get(key)
        if known is None or not known.holds(pod, standing):
            known = self._judged[key] = self._judge(now, pod, standing, known)
        return known.verdict

    def _judge(self, now: float, pod: PodView, standing: _Standing, known: _Judged | None) -> _Judged:
        earlier = known.signs if known is not None and known.pod.uid == pod.uid else ()
        signs = _signs(judge_pod(pod, self._table), "pod", now, earlier)
        self._shared = self._shared or pod.host_network
        verdict = judge(pod, (*signs, *standing.signs), self._rules, self._job)
        return _Judged(pod, standing, signs, verdict)

    def _stand(
        self,
        now: float,
        pods: Mapping[Key, PodView],
        nodes: Mapping[str, NodeView] | None,
        exists: Mapping[str, bool],
    ) -> None:
        """See what is held of each node that pods run on."""
        before, self._nodes = self._nodes, {}
        missed: dict[str, float] = {}
        if nodes is None:
            self._missed = {}
            return
        used = {pod.node for pod in pods.values() if pod.node and pod.phase in _AT_WORK}
        for name in used:
            node = nodes.get(name)
            if node is None:
                missed[name] = min(now, self._missed.get(name, now))
                if now < missed[name] + TOLERANCE or exists.get(name) is not False:
                    # What was last known of it goes on to hold: no host comes back because its node is deleted.
                    if name in before:
                        self._nodes[name] = before[name]
                    continue
            self._nodes[name] = (node, self._standing(now, name, node, before.get(name, _UNNAMED)))
        self._missed = missed

    def _standing(
        self, now: float, name: str, node: NodeView | None, before: tuple[NodeView | None, _Standing]
    ) -> _Standing:
        known, standing = before
        if known is node and before is not _UNNAMED:
            return standing
        same = known is not None and node is not None and known.uid == node.uid
        signs = _signs(judge_node(node, self._table), f"node {name}", now, standing.signs if same else ())
        if signs == standing.signs:
            return standing
        return _Standing(signs)

    def _waiting(self, now: float) -> tuple[float | None, tuple[str, ...]]:
        ends = {name: since + TOLERANCE for name, since in self._missed.items()}
        missing = tuple(sorted(name for name, end in ends.items() if now >= end))
        return min((end for end in ends.values() if now < end), default=None), missing


def _signs(findings: Iterable[Finding], subject: str, now: float, earlier: tuple[Sign, ...]) -> tuple[Sign, ...]:
    """Findings with the times at which they were first seen; those that were there ``earlier`` keep theirs."""
    since = {sign.finding.signal.name: sign.first_seen for sign in earlier}
    return tuple(Sign(finding, since.get(finding.signal.name, now), subject) for finding in findings)


def _one_per_address(verdicts: tuple[Verdict, ...]) -> tuple[Verdict, ...]:
    """Of pods in the network of one node only the one that started first can listen on the port of ssh."""
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
