"""Reads and changes the jobs of a namespace."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Collection
from typing import Final

from hvd_elastic_ext.core.errors import Permanent, UsageError
from hvd_elastic_ext.io.option_parser import nearest
from hvd_elastic_ext.jobs.cluster.api import Body, Cluster, ClusterRefused, WrongState, plural
from hvd_elastic_ext.jobs.reading.states import (
    FINISHED,
    GONE,
    ROOT_KINDS,
    SUSPENDED,
    JobStatus,
    Kind,
    asked_for,
    seen,
    state_of,
)
from hvd_elastic_ext.jobs.rendering.objects import JOB_LABEL, LAUNCHER, WORKER
from hvd_elastic_ext.jobs.rendering.render import BY, MANAGED, selector
from hvd_elastic_ext.launcher.rules.suspend.workloads import BEFORE, change_request

LEFT: Final = (
    ("v1", "configmaps"),
    ("v1", "secrets"),
    ("v1", "services"),
    ("v1", "serviceaccounts"),
    ("apps/v1", "statefulsets"),
    ("networking.k8s.io/v1", "networkpolicies"),
    ("rbac.authorization.k8s.io/v1", "rolebindings"),
    ("rbac.authorization.k8s.io/v1", "roles"),
)
"""Kinds of objects that a broken ``submit`` may leave without a job."""
LEAVES_S: Final = 60.0
"""Seconds for a launcher to make its last checkpoint and end, before its workers are deleted."""
LOOKS_S: Final = 2.0
"""Seconds between two reads of a job that a command waits for."""
KUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", re.ASCII)

Sleep = Callable[[float], None]


class NoSuchJob(UsageError):
    """There is no job of this name. The exit code is 1, as with kubectl."""

    exit_code = 1


class NotReached(Permanent):
    """A job ended in another state than the awaited one, or the time limit passed."""


def all_of(cluster: Cluster, labels: str = "") -> list[JobStatus]:
    """Return every submitted job of the namespace (or of all) with these labels, sorted by namespace and name."""
    wanted = ",".join(filter(None, (selector(), labels)))
    roots = [each for kind in ROOT_KINDS for each in _roots(cluster, kind, wanted)]
    pods: dict[str, list[Body]] = {}
    for each in cluster.listed("v1", "pods", JOB_LABEL) if roots else []:
        pods.setdefault(each["metadata"]["namespace"], []).append(each)
    found = []
    for root in roots:
        place = root["metadata"]["namespace"]
        found.append(seen(root, pods.get(place, []), _workers(cluster.within(place), root)))
    return sorted(found, key=lambda job: (job.namespace, job.name))


def root_of(cluster: Cluster, name: str) -> Body:
    """Return the object that represents the job, also one made by hand. Raises :class:`NoSuchJob` if there is none."""
    if roots := _named(cluster, name):
        return roots[0]
    try:
        known = [job.name for job in all_of(cluster)]
        hint = nearest(name, known) if known else "nothing was submitted here"
    except ClusterRefused:  # a user who may read one job may lack the right to list all jobs
        hint = "its jobs could not be listed"
    raise NoSuchJob(f"there is no job {name} in namespace {cluster.namespace}; {hint}")


def _named(cluster: Cluster, name: str) -> list[Body]:
    """Return all submitted jobs of this name, or else the first existing job of this name that was made by hand."""
    _check(name)
    found = []
    for kind in ROOT_KINDS:
        body = cluster.read(cluster.path(kind.api_version, kind.plural, name))
        if body is not None:
            found.append({**body, "apiVersion": kind.api_version, "kind": kind.kind})
    ours = [each for each in found if (each["metadata"].get("labels") or {}).get(MANAGED) == BY]
    return ours or found[:1]


def _check(name: str) -> None:
    """Refuse an invalid name. With an empty name, a path would mean all objects of a kind, and labels all jobs."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"NAME {name!r} is no name of a job: small letters, digits, '-' and '.'")


def look(cluster: Cluster, name: str) -> JobStatus:
    """Return one job. Raises :class:`NoSuchJob` if there is none."""
    root = root_of(cluster, name)
    return seen(root, cluster.listed("v1", "pods", selector(name)), _workers(cluster, root))


def _roots(cluster: Cluster, kind: Kind, labels: str) -> list[Body]:
    # Items of a list have no kind of their own.
    found = cluster.listed(kind.api_version, kind.plural, labels)
    return [{**each, "apiVersion": kind.api_version, "kind": kind.kind} for each in found]


def _set_path(cluster: Cluster, root: Body, subresource: str = "") -> str:
    return cluster.path("apps/v1", "statefulsets", f"{root['metadata']['name']}-{WORKER}", subresource)


def _workers(cluster: Cluster, root: Body) -> Body | None:
    return cluster.read(_set_path(cluster, root)) if root["kind"] == "Job" else None


def scale(cluster: Cluster, name: str, workers: int) -> None:
    """Set the number of workers; 0 removes the workers of a StatefulSet whose job has ended. Raises :class:`UsageError`
    for a number outside the limits of the job."""
    root = root_of(cluster, name)
    there = _workers(cluster, root)
    job = seen(root, (), there)
    low, high = job.least or 1, job.most
    if workers == 0 and there is not None and job.state in FINISHED:
        cluster.ask("PATCH", _set_path(cluster, root, "scale"), {"spec": {"replicas": 0}})
        return
    if workers < low or (high is not None and workers > high):
        raise UsageError(f"{name} was submitted for {low} to {'any number of' if high is None else high} workers")
    if there is not None and KUEUE_LABEL in (there["metadata"].get("labels") or {}) and workers != job.asked:
        # Kueue's webhook refuses another number, but it does not see the scale subresource. With that, Kueue would
        # delete the surplus pods again and again.
        raise UsageError(
            f"{name}: Kueue admits workers of a StatefulSet as one group, whose number cannot change; submit it with "
            "another --workers, or as an MPIJob"
        )
    patch = {"spec": {"replicas": workers}}
    match root["kind"]:
        case "Job":
            cluster.ask("PATCH", _set_path(cluster, root, "scale"), patch)
        case "TrainingJob":
            _scale_by_request(cluster, root, workers - (job.asked or 0))
        case kind:
            field = "mpiReplicaSpecs" if kind == "MPIJob" else "pytorchReplicaSpecs"
            cluster.ask("PATCH", cluster.path_of(root), {"spec": {field: {"Worker": patch["spec"]}}})


def _scale_by_request(cluster: Cluster, root: Body, more: int) -> None:
    """Request a change by an object of its own: the et-operator ignores the number in a running job."""
    if not more:
        return
    name = root["metadata"]["name"]
    body = change_request(name, more)
    body["metadata"]["labels"] = {JOB_LABEL: name}
    cluster.ask("POST", cluster.path_of({**body, "metadata": {"name": ""}}, named=False), body)


def suspend(cluster: Cluster, name: str, *, sleep: Sleep = time.sleep) -> Body:
    """Suspend a job: its pods are deleted until it is resumed. Returns the job. Raises :class:`UsageError` if its kind
    cannot be suspended."""
    root = _suspendable(cluster, name)
    if root["kind"] != "Job":
        cluster.ask("PATCH", cluster.path_of(root), {"spec": {"runPolicy": {"suspend": True}}})
        return root
    workers = asked_for(root, _workers(cluster, root))
    cluster.ask("PATCH", cluster.path_of(root), {"spec": {"suspend": True}})
    _wait_for_launcher(cluster, name, sleep=sleep)  # its last checkpoint needs the workers
    note = {"metadata": {"annotations": {BEFORE: str(workers)}}} if workers else {}
    cluster.ask("PATCH", _set_path(cluster, root), {**note, "spec": {"replicas": 0}})
    return root


def resume(cluster: Cluster, name: str) -> Body:
    """Resume a suspended job. Returns the job."""
    root = _suspendable(cluster, name)
    if root["kind"] != "Job":
        cluster.ask("PATCH", cluster.path_of(root), {"spec": {"runPolicy": {"suspend": False}}})
        return root
    there = _workers(cluster, root) or {}
    noted = str(((there.get("metadata") or {}).get("annotations") or {}).get(BEFORE) or "")
    if not (there.get("spec") or {}).get("replicas"):
        count = int(noted) if noted.isdecimal() else seen(root, ()).least or 1
        patch = {"metadata": {"annotations": {BEFORE: None}}, "spec": {"replicas": count}}
        cluster.ask("PATCH", _set_path(cluster, root), patch)
    cluster.ask("PATCH", cluster.path_of(root), {"spec": {"suspend": False}})
    return root


def _suspendable(cluster: Cluster, name: str) -> Body:
    root = root_of(cluster, name)
    if root["kind"] == "TrainingJob":
        raise UsageError(f"{name} is a TrainingJob: the et-operator can suspend a job, and cannot resume it")
    if KUEUE_LABEL in ((root["metadata"].get("labels")) or {}):
        raise UsageError(f"{name} is Kueue's to suspend: change its LocalQueue, or the active field of its Workload")
    if (state := state_of(root)[0]) in FINISHED:
        raise WrongState(f"{name} has ended: {state}")
    return root


def _wait_for_launcher(cluster: Cluster, name: str, *, sleep: Sleep) -> None:
    for _ in range(int(LEAVES_S / LOOKS_S)):
        if not cluster.listed("v1", "pods", selector(name, role=LAUNCHER)):
            return
        sleep(LOOKS_S)


def delete(cluster: Cluster, name: str) -> list[str]:
    """Delete a job and all objects that were made for it. Returns the names of the objects that its owner references do
    not delete.

    Dependents are deleted here, too: the cluster deletes them later, and until then ``submit`` refuses their names.
    """
    deleted, gone = [], set[str]()
    for root in _named(cluster, name):
        if cluster.delete(cluster.path_of(root)):
            deleted.append(f"{plural(root['kind'])}/{name}")
        gone.add(str(root["metadata"].get("uid")))
    for version, kind in LEFT:
        for each in cluster.listed(version, kind, f"{selector(name)},{selector()}"):
            path = cluster.path(version, kind, each["metadata"]["name"])
            owners = {str(owner.get("uid")) for owner in each["metadata"].get("ownerReferences") or ()}
            if owners <= gone and cluster.delete(path) and not owners:
                deleted.append(f"{kind}/{each['metadata']['name']}")
    return deleted


def wait_for(
    cluster: Cluster,
    name: str,
    states: Collection[str],
    *,
    within_s: float | None = None,
    sleep: Sleep = time.sleep,
    report: Callable[[str], object] = lambda line: None,
) -> str:
    """Wait until a job is in one of ``states``, and return that state. ``report`` takes a line at each look.

    Raises :class:`NotReached` if it ended in
    another state or takes longer than ``within_s`` seconds, and :class:`NoSuchJob` if there is no such job."""
    _check(name)
    for looks in itertools.count():
        state, message = _state(cluster, name)
        if state in states:
            return state
        if state == GONE and not looks:
            root_of(cluster, name)
        if state == GONE or state in FINISHED:
            raise NotReached(f"{name}: {state}{': ' * bool(message)}{message}")
        if within_s is not None and looks * LOOKS_S >= within_s:
            raise NotReached(f"{name}: still {state} after {round(within_s, 1):g} s{'; ' * bool(message)}{message}")
        report(f"waiting for {name}: {state}{'; ' * bool(message)}{message}")
        sleep(LOOKS_S)
    raise AssertionError


def _state(cluster: Cluster, name: str) -> tuple[str, str]:
    try:
        job = look(cluster, name)
    except UsageError:
        return GONE, ""
    waits = next((f"{pod.name}: {pod.why}" for pod in job.pods if pod.why), "")
    return job.state, job.message or ("" if job.state == SUSPENDED else waits)
