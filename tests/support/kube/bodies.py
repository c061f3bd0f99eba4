"""API objects of pods, nodes and jobs as clusters have them, for tests to put into a server. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Body = dict[str, Any]

IMAGE: Final = "example.org/worker:1"
SINCE: Final = "2026-01-01T00:00:00Z"


def condition(kind: str, status: str | bool = True, *, reason: str = "", since: str = SINCE) -> Body:
    word = status if isinstance(status, str) else "True" if status else "False"
    found = {"type": kind, "status": word, "lastTransitionTime": since}
    return {**found, "reason": reason} if reason else found


def pod(
    name: str,
    *,
    node: str = "node-0",
    namespace: str = "default",
    ready: bool = True,
    phase: str = "Running",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    subdomain: str = "job",
    ip: str = "10.0.0.1",
    limits: Mapping[str, str] | None = None,
    owner: tuple[str, str, str] | None = None,
    conditions: Sequence[Body] = (),
    **spec: Any,
) -> Body:
    """Return a worker's pod. ``owner``: kind, name and UID of its controller. ``spec``: further fields of the spec."""
    resources = {"limits": dict(limits)} if limits else {}
    container = {"name": "worker", "image": IMAGE, "resources": resources}
    body: Body = {
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {"job": "job"})},
        "spec": {"nodeName": node, "subdomain": subdomain, "containers": [container], **spec},
        "status": {"phase": phase, "podIP": ip, "hostIP": "192.0.2.1", "startTime": SINCE},
    }
    if annotations:
        body["metadata"]["annotations"] = dict(annotations)
    if owner is not None:
        kind, owner_name, uid = owner
        reference = {"apiVersion": "v1", "kind": kind, "name": owner_name, "uid": uid, "controller": True}
        body["metadata"]["ownerReferences"] = [reference]
    body["status"]["conditions"] = [*_pod_conditions(ready), *conditions]
    body["status"]["containerStatuses"] = [container_status(ready=ready, state={"running": {"startedAt": SINCE}})]
    return body


def container_status(*, ready: bool, state: Body) -> Body:
    """Return the status of a worker's container."""
    image = {"image": IMAGE, "imageID": f"{IMAGE}@sha256:{'0' * 64}"}
    return {"name": "worker", **image, "ready": ready, "started": ready, "restartCount": 0, "state": state}


def _pod_conditions(ready: bool) -> list[Body]:
    return [
        condition("PodScheduled"),
        condition("Initialized"),
        condition("ContainersReady", ready),
        condition("Ready", ready),
    ]


def node(
    name: str,
    *,
    ready: str | bool = True,
    taints: Sequence[Body] = (),
    labels: Mapping[str, str] | None = None,
    conditions: Sequence[Body] = (),
    **spec: Any,
) -> Body:
    """Return a node. ``ready``: may also be "Unknown"."""
    pressures = [condition(kind, False) for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")]
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {**({"taints": list(taints)} if taints else {}), **spec},
        "status": {"conditions": [*pressures, condition("Ready", ready), *conditions]},
    }


def taint(key: str, value: str = "", effect: str = "NoSchedule", *, added: str = "") -> Body:
    body = {"key": key, "effect": effect}
    return body | ({"value": value} if value else {}) | ({"timeAdded": added} if added else {})


def mpi_job(name: str, *, workers: int = 2, slots: int = 1, namespace: str = "default") -> Body:
    """Return an MPIJob of the MPI Operator, v2beta1."""

    def replicas(role: str, count: int) -> Body:
        return {"replicas": count, "template": {"spec": {"containers": [{"name": role, "image": IMAGE}]}}}

    roles = {"Launcher": replicas("launcher", 1), "Worker": replicas("worker", workers)}
    metadata = {"name": name, "namespace": namespace}
    return {"metadata": metadata, "spec": {"slotsPerWorker": slots, "mpiReplicaSpecs": roles}}


def mpi_worker_labels(job: str) -> dict[str, str]:
    """Return the labels that the MPI Operator v2beta1 puts on its workers."""
    prefix = "training.kubeflow.org"
    return {f"{prefix}/job-name": job, f"{prefix}/job-role": "worker", f"{prefix}/operator-name": "mpi-operator"}


def large_pod(name: str, *, node: str = "node-0", labels: Mapping[str, str] | None = None, size: int = 5000) -> Body:
    """Return a pod of about ``size`` bytes. Most of them are in fields that no code here reads, as in real clusters."""
    body = pod(name, node=node, labels=labels)
    managed: list[Body] = []
    body["metadata"]["managedFields"] = managed
    filler: Body = {f"f:field-{number}": {".": {}, "f:name": {}} for number in range(max(size - 1400, 0) // 42)}
    managed.append({"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": filler}})
    return body
