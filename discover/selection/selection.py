"""Makes the verdicts on all pods from the known objects of a cluster. Pure except for its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from discover.pods.operators import HostRules, JobView
from discover.selection.node_signals import NodeSignals, NodeSignalTracker, with_first_seen
from discover.selection.objects import ClusterSnapshot, Key, PodView
from discover.verdicts.signals import Table, job_signals, pod_signals
from discover.verdicts.verdicts import ActiveSignal, Grade, Verdict, verdict_of

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

    def holds(self, pod: PodView, signals: NodeSignals, job: JobView | None) -> bool:
        """Whether the verdict still holds. Most pods are the same objects as before; after a list they may only be
        equal.
        """
        if self.signals is not signals or self.job is not job:
            return False
        if self.pod is not pod and self.pod != pod:
            return False
        self.pod = pod
        return True


_RUNNING: Final = ("Running", "Unknown")


class Selector:
    """Judges all pods of a job at each call. It judges a pod anew only if the pod, its node's signals or the job are
    other objects than before: a look at ten thousand pods then takes hundredths of a second.

    It remembers when signals without a time of their own were first seen, and when nodes were first missing. Everything
    else comes from the snapshot.
    """

    def __init__(self, rules: HostRules, table: Table) -> None:
        self._rules = rules
        self._table = table
        self._job: JobView | None = None
        self._of_job: tuple[ActiveSignal, ...] = ()
        self._judged: dict[Key, _Judged] = {}
        self._nodes = NodeSignalTracker(table)

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
        pods = snapshot.pods
        used = {pod.node for pod in pods.values() if pod.node and pod.phase in _RUNNING}
        self._nodes.follow(wall_now, snapshot.nodes, used=used, exists=node_exists)
        if job != self._job:
            self._take_in(wall_now, job)
        judged: dict[Key, _Judged] = {}
        for key in sorted(pods):
            pod, known = pods[key], self._judged.get(key)
            signals = self._nodes.of(pod.node)
            if known is None or not known.holds(pod, signals, self._job):
                known = self._judge(wall_now, pod, signals, known)
            judged[key] = known
        self._judged = judged
        return Selection(
            _one_per_address(tuple(each.verdict for each in judged.values())), *self._nodes.missing(wall_now)
        )

    def _take_in(self, now: float, job: JobView | None) -> None:
        same = job is not None and self._job is not None and job.uid == self._job.uid
        found = () if job is None else job_signals(job.labels, job.annotations, self._table)
        self._job, self._of_job = job, with_first_seen(found, "job", now, self._of_job if same else ())

    def _judge(self, now: float, pod: PodView, signals: NodeSignals, known: _Judged | None) -> _Judged:
        earlier = known.signs if known is not None and known.pod.uid == pod.uid else ()
        signs = with_first_seen(pod_signals(pod, self._table), "pod", now, earlier)
        verdict = verdict_of(pod, (*signs, *signals.signs, *self._of_job), self._rules, self._job)
        return _Judged(pod, signals, self._job, signs, verdict)


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
