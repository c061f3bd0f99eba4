"""Computes what the server stores when an object is created, changed or deleted. Pure."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any, Final

from tests.support.kube import statuses
from tests.support.kube.clock import rfc3339, unix
from tests.support.kube.resources import Key, Resource

Body = dict[str, Any]

_SETTLED: Final = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "name",
    "namespace",
    "generateName",
)
"""Fields of the metadata that requests cannot change."""

_POD_DEFAULTS: Final = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "enableServiceLinks": True,
}
_COUNTED: Final = frozenset({"deployments", "statefulsets", "jobs", "mpijobs", "pytorchjobs", "trainingjobs"})
"""Kinds whose ``generation`` grows with each change of their spec."""


def new(resource: Resource, key: Key, body: Body, *, now: float) -> Body:
    """Return what a creation writes. ``now``: in Unix seconds. Raises ApiError 422."""
    metadata = dict(body.get("metadata") or {})
    for name in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        metadata.pop(name, None)
    metadata |= {"name": key.name, "uid": str(uuid.uuid4()), "creationTimestamp": rfc3339(now)}
    if key.namespace:
        metadata["namespace"] = key.namespace
    if resource.plural in _COUNTED:
        metadata["generation"] = 1
    result = {**body, "metadata": metadata}
    if resource.status and resource.plural != "nodes":  # a kubelet registers its node with its status
        result.pop("status", None)
    match resource.kind:
        case "ConfigMap":
            _check_keys(result)
        case "Pod":
            result |= _new_pod(result)
        case "Node":
            result |= _new_node(result)
        case "StatefulSet" | "Deployment":
            result["spec"] = {"replicas": 1, **(result.get("spec") or {})}
            result["status"] = {"replicas": 0, "availableReplicas": 0}
    return result


_KEY: Final = re.compile(r"[-._a-zA-Z0-9]+", re.ASCII)


def _check_keys(body: Body) -> None:
    for field in ("data", "binaryData"):
        for key in body.get(field) or ():
            if not _KEY.fullmatch(key):
                why = (
                    f'Invalid value: "{key}": a valid config key must consist of alphanumeric characters, '
                    "'-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
                    "'[-._a-zA-Z0-9]+')"
                )
                raise statuses.invalid("ConfigMap", "", body["metadata"]["name"], field=f"{field}[{key}]", why=why)


def _new_pod(body: Body) -> Body:
    spec = body.get("spec") or {}
    if not spec.get("containers"):
        name = body["metadata"]["name"]
        raise statuses.invalid(
            "Pod", "", name, field="spec.containers", why="Required value", reason="FieldValueRequired"
        )
    status: Body = {"phase": "Pending", "qosClass": "BestEffort"}
    if spec.get("schedulingGates"):
        gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
        status["conditions"] = [{**gated, "message": "Scheduling is blocked due to non-empty scheduling gates"}]
    return {"spec": {**_POD_DEFAULTS, **spec}, "status": status}


def _new_node(body: Body) -> Body:
    """Return the changed fields of a new node. Admission marks each new node as not ready; the node controller removes
    that later.
    """
    spec = dict(body.get("spec") or {})
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    if taint not in (taints := list(spec.get("taints") or [])):
        spec["taints"] = [*taints, taint]
    return {"spec": spec}


def changed(resource: Resource, old: Body, wanted: Body, *, subresource: str, patch: bool = False) -> Body:
    """Return what an update or a patch of an object, or of its status, writes. Raises ApiError 409 or 422."""
    name = old["metadata"]["name"]
    metadata = dict(wanted.get("metadata") or {})
    version, uid = metadata.get("resourceVersion"), metadata.get("uid")
    if version and version != old["metadata"]["resourceVersion"]:
        raise statuses.conflict(resource, name)
    if uid and uid != old["metadata"]["uid"]:
        raise _another(resource, name, uid, old["metadata"]["uid"], patch=patch)
    metadata = {each: value for each, value in metadata.items() if each not in (*_SETTLED, "generation")}
    metadata |= {each: old["metadata"][each] for each in (*_SETTLED, "generation") if each in old["metadata"]}
    if subresource == "status":
        return _status_changed(resource, old, wanted, metadata)
    result = {**wanted, "metadata": metadata}
    if resource.kind == "ConfigMap":
        _check_keys(result)
    if resource.status:
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    if resource.plural in _COUNTED and result.get("spec") != old.get("spec"):
        metadata["generation"] = int(old["metadata"].get("generation", 0)) + 1
    return result


def _another(resource: Resource, name: str, wanted: str, found: str, *, patch: bool) -> statuses.ApiError:
    if patch:
        why = f'Invalid value: "{wanted}": field is immutable'
        return statuses.invalid(resource.kind, resource.group, name, field="metadata.uid", why=why)
    facts = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}"
    what = f"StorageError: invalid object, Code: 4, Key: /registry/{resource.plural}/{name}, ResourceVersion: 0"
    return statuses.conflict(resource, name, f"{what}, AdditionalErrorMsg: {facts}")


def _status_changed(resource: Resource, old: Body, wanted: Body, metadata: Body) -> Body:
    result = {**old, "status": wanted.get("status") or {}}
    if not resource.custom:
        metadata["ownerReferences"] = old["metadata"].get("ownerReferences")
        result["metadata"] = {each: value for each, value in metadata.items() if value is not None}
    return result


@dataclass(frozen=True, slots=True)
class Deletion:
    """``body``: what to write, None for nothing. ``gone``: whether the object is removed then."""

    body: Body | None
    gone: bool


def deleted(resource: Resource, old: Body, *, grace: int | None, now: float) -> Deletion:
    """Return what a deletion does. A pod is always marked first, even if it is removed at once. No object has
    finalizers here.
    """
    if resource.kind != "Pod":
        return Deletion(None, gone=True)
    metadata = old["metadata"]
    before = metadata.get("deletionGracePeriodSeconds")
    if before is None:
        seconds, asked = _grace(old, grace), now
    elif grace is None or grace >= before:
        return Deletion(None, gone=False)  # the grace may only become shorter
    else:
        seconds, asked = max(grace, 0), unix(metadata["deletionTimestamp"]) - before
    return Deletion(_marked(old, seconds, asked=asked), gone=seconds == 0)


def _marked(old: Body, grace: int, *, asked: float) -> Body:
    metadata = dict(old["metadata"])
    if "generation" in metadata and "deletionTimestamp" not in metadata:
        metadata["generation"] += 1
    metadata |= {"deletionTimestamp": rfc3339(asked + grace), "deletionGracePeriodSeconds": grace}
    return {**old, "metadata": metadata}


def _grace(pod: Body, asked: int | None) -> int:
    if not pod["spec"].get("nodeName") or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0  # no kubelet runs it
    return max(int(pod["spec"].get("terminationGracePeriodSeconds", 30)) if asked is None else asked, 0)


def with_condition(body: Body, condition: Body) -> Body:
    """Return the object with this condition in its status, instead of an earlier one of the same type."""
    status = dict(body.get("status") or {})
    others = [each for each in status.get("conditions") or () if each.get("type") != condition["type"]]
    return {**body, "status": {**status, "conditions": [*others, condition]}}
