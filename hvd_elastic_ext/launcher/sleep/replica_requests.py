"""Objects that make a job's worker pods, and how to set their replica count: paths, patches and answers. Pure.

``core/workload_kinds.py`` says how kinds differ.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.core.workload_kinds import NAMED, WORKER, WorkloadKind, at, nested

BEFORE: Final = "hvd-elastic-ext/workers-before-sleep"
"""Annotation of a job that sleeps: the number of its workers before."""
COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation of a pod: a ReplicaSet deletes ready pods with lower costs first (KEP-2255, from Kubernetes 1.22)."""
DELETION_COST: Final = "-2000000000"
"""The cost that we set on a pod that is to go. No other cost is likely to be as low, so it also identifies our
marks.
"""
REQUEST_S: Final = 300
"""How long the et-operator waits for pods that were asked for; then it deletes them."""
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """One object of a kind."""

    kind: WorkloadKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.name}/{self.name}"


_SCALABLE: Final = re.compile(
    r"([a-z]{1,63})\.(v[0-9][a-z0-9]{0,15})\.([a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,5})", re.ASCII
)
"""Any kind with a scale subresource, as kubectl names it: plural, version, group."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
RELEASE: Final = "--release-job"


def workload(text: str, *, option: str = RELEASE) -> Workload:
    """Read ``KIND/NAME``, the value of ``option``. Raises :class:`UsageError`."""
    kind, slash, name = text.partition("/")
    if not slash or not _NAME.fullmatch(name):
        raise UsageError(f"{option} {text!r} does not name an object; write KIND/NAME, such as mpijob/digits")
    known = NAMED.get(kind)
    if known is not None and known.scaled_by and option == RELEASE:
        raise UsageError(
            f"{option} {kind}: the et-operator does not look at the number of workers of a job that runs, "
            "and the API server does not accept 0 there; use --sleep-releases none"
        )
    if known is None and (other := _SCALABLE.fullmatch(kind)) is not None:
        plural, version, group = other.groups()
        known = WorkloadKind(group=group, version=version, plural=plural, kind="", name=kind, scale=True)
    if known is None:
        near = difflib.get_close_matches(kind, NAMED, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"{option} {text!r}: {kind!r} is not one of {', '.join(NAMED)}; did you mean {near!r}? "
            "Others with a scale subresource are written PLURAL.VERSION.GROUP"
        )
    return Workload(known, name)


@dataclass(frozen=True, slots=True)
class Pod:
    """One worker. ``leaving``: its deletion was asked for; ``cost``: of its annotation; ``ip``: "" if it has none."""

    name: str
    uid: str
    ready: bool
    leaving: bool
    cost: str | None = None
    ip: str = ""

    def is_host(self, host: str) -> bool:
        """Whether a host's name is that of this pod, as a name with domains behind it, or its address."""
        return host == self.ip or host.partition(".")[0] == self.name


@dataclass(frozen=True, slots=True)
class Seen:
    """What a cluster shows of a workload."""

    replicas: int
    """Its requested number of workers."""
    pods: tuple[Pod, ...] = ()
    """All that exist, dead ones and those in deletion included."""
    before: int | None = None
    """The number in its annotation; None if it has none."""
    slots: int | None = None
    """Those of each worker, if the workload names them; 1 may be the default of the API."""

    @property
    def ready(self) -> int:
        """Number of pods that are ready and not in deletion."""
        return sum(pod.ready and not pod.leaving for pod in self.pods)


def selector_of(of: Workload, number: Mapping[str, Any]) -> str:
    """Labels of the workers. ``number``: the object, or its scale. Raises ``ValueError``."""
    if of.kind.labels:
        return of.kind.selector(of.name, role=WORKER)
    selector = at(number, "status", "selector")
    if not isinstance(selector, str) or not selector:
        raise ValueError(f"{of} does not say which pods are its own")
    return selector


def seen(of: Workload, number: Mapping[str, Any], pods: Mapping[str, Any]) -> Seen:
    """Read answers: an object or its scale, and a list of pods. Raises ``ValueError`` for invalid ones."""
    replicas = at(number, *(("spec", "replicas") if of.kind.scale else of.kind.replicas_at))
    if replicas is None and isinstance(number.get("spec"), dict):
        replicas = 0  # a scale without it means 0
    if type(replicas) is not int or not isinstance(pods.get("items"), list):
        raise ValueError(f"the answer about {of} is invalid")
    uid = None if of.kind.scale else at(number, "metadata", "uid")
    mine = tuple(_pod(each) for each in pods["items"] if uid is None or _owner(each) == uid)
    slots = at(number, *of.kind.slots_at) if of.kind.slots_at else None
    return Seen(replicas, mine, _before(number), slots if type(slots) is int and slots > 0 else None)


def marks(of: Workload, now: Seen, leaving: Sequence[str]) -> list[tuple[str, str | None]]:
    """Pods whose cost changes so that the hosts of ``leaving`` go first, and their costs; None for no cost.

    Raises ``ValueError`` for a host that is not one of the pods: another one would go.
    """
    there = [pod for pod in now.pods if not pod.leaving]
    strange = [host for host in leaving if not any(pod.is_host(host) for pod in now.pods)]
    if strange:
        raise ValueError(f"host {strange[0]} is not a pod of {of}")
    goes = {pod.name for pod in there if any(pod.is_host(host) for host in leaving)}
    return [
        (pod.name, DELETION_COST if pod.name in goes else None)
        for pod in there
        if (pod.name in goes) != (pod.cost == DELETION_COST)
    ]


def mark_patch(cost: str | None) -> Body:
    """The merge patch that sets a pod's cost."""
    return {"metadata": {"annotations": {COST: cost}}}


def request(of: Workload, before: Sequence[str], replicas: int, leaving: Sequence[str]) -> tuple[str, Body] | None:
    """The request to the et-operator for this many workers: plural and object; None if there are as many.

    ``before``: its workers; ``leaving``: the only hosts that may go. Raises ``ValueError`` if
    none of them is a worker: the operator would choose.
    """
    more = replicas - len(before)
    if not more:
        return None
    ups, downs = of.kind.scaled_by_plurals
    if more > 0:
        return ups, change_request(of, more, timeout_s=REQUEST_S)
    pods = [worker for worker in before if any(host.partition(".")[0] == worker for host in leaving)]
    if not pods:
        raise ValueError(f"{of} has {-more} workers more than are wanted, and none of them is a host")
    return downs, change_request(of, -len(pods), pods)


def change_request(of: Workload, more: int, pods: Sequence[str] = (), *, timeout_s: int | None = None) -> Body:
    """A ScaleOut or ScaleIn for a job: this many workers ``more``, or fewer, by name if ``pods`` are given."""
    up, down = of.kind.scaled_by
    kind, key = (up, "toAdd") if more > 0 else (down, "toDelete")
    return {
        "apiVersion": of.kind.api_version,
        "kind": kind,
        "metadata": {"generateName": f"{of.name}-{kind.lower()}-"},
        "spec": {
            "selector": {"name": of.name},
            key: {"count": abs(more), **({"podNames": list(pods)} if pods else {})},
            **({} if timeout_s is None else {"timeout": timeout_s}),
        },
    }


def workers_of(of: Workload, job: Mapping[str, Any]) -> tuple[list[str], str]:
    """Names of a TrainingJob's workers, and the operator's running change ("" for none)."""
    names, scaler = at(job, *of.kind.workers_at), at(job, "status", "currentScaler")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{of} has no workers yet")
    return names, scaler if isinstance(scaler, str) else ""


def scale_patch(of: Workload, replicas: int, before: int | None) -> Body:
    """The merge patch that requests this many workers, and notes ``before`` in the same request: the number before;
    None removes the note.
    """
    if of.kind.scale:
        return {"spec": {"replicas": replicas}}
    return {**nested(of.kind.replicas_at, replicas), "metadata": {"annotations": {BEFORE: before and str(before)}}}


def suspended(of: Workload, replicas: int) -> Body:
    """The merge patch that suspends a whole job. The number in it is valid: else the operator ignores the object."""
    patch = scale_patch(of, replicas, None)
    return {**patch, "spec": {**patch["spec"], **nested(of.kind.suspend_at[1:], True)}}


def to_delete(of: Workload, now: Seen) -> tuple[Pod, ...]:
    """The pods that the operator would not delete."""
    return (
        tuple(pod for pod in now.pods if not pod.leaving)
        if of.kind.invalid_without_workers and now.replicas == 0
        else ()
    )


def _pod(raw: Any) -> Pod:
    metadata = at(raw, "metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise ValueError("the list contains an invalid pod")
    conditions = at(raw, "status", "conditions")
    ready = any(
        isinstance(each, dict) and each.get("type") == "Ready" and each.get("status") == "True"
        for each in (conditions if isinstance(conditions, list) else [])
    )
    cost, ip = at(metadata, "annotations", COST), at(raw, "status", "podIP")
    return Pod(
        metadata["name"],
        str(metadata.get("uid") or ""),
        ready,
        bool(metadata.get("deletionTimestamp")),
        cost if isinstance(cost, str) else None,
        ip if isinstance(ip, str) else "",
    )


def _owner(raw: Any) -> str:
    """UID of the owner of a pod; "" if unknown. Labels alone do not make a pod the job's."""
    owners = at(raw, "metadata", "ownerReferences")
    for each in owners if isinstance(owners, list) else []:
        if isinstance(each, dict) and each.get("controller") is True:
            return str(each.get("uid") or "")
    return ""


def _before(number: Mapping[str, Any]) -> int | None:
    text = at(number, "metadata", "annotations", BEFORE)
    return int(text) if isinstance(text, str) and re.fullmatch(r"[1-9]\d{0,5}", text, re.ASCII) else None
