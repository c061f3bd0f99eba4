"""What the server makes of an object that is created, changed or deleted. Pure."""

from __future__ import annotations

import re
import uuid
from typing import Any, Final

from tests.support.kube import statuses
from tests.support.kube.clock import rfc3339, unix
from tests.support.kube.resources import Key, Resource

Body = dict[str, Any]

_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_SETTLED: Final = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "name",
    "namespace",
    "generateName",
)
"""Metadata that a change cannot change."""

_POD_DEFAULTS: Final = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "enableServiceLinks": True,
}
_POD_CHANGEABLE: Final = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")
_COUNTED: Final = frozenset({"statefulsets", "jobs", "mpijobs", "pytorchjobs", "trainingjobs", "poddisruptionbudgets"})
"""Kinds whose ``generation`` grows with their spec."""


def new(resource: Resource, key: Key, body: Body, *, now: float) -> Body:
    """What a creation writes. Raises ApiError 422."""
    if not _NAME.fullmatch(key.name) or len(key.name) > 253:
        why = (
            f'Invalid value: "{key.name}": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric '
            "characters, '-' or '.', and must start and end with an alphanumeric character"
        )
        raise statuses.invalid(resource.kind, resource.group, key.name, field="metadata.name", why=why)
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
        case "Pod":
            result |= _new_pod(result)
        case "Node":
            result |= _new_node(result)
        case "Namespace":
            result |= {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
            metadata["labels"] = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": key.name}
        case "StatefulSet":
            result["spec"] = {"replicas": 1, **(result.get("spec") or {})}
            result["status"] = {"replicas": 0, "availableReplicas": 0}
    return result


def _new_pod(body: Body) -> Body:
    spec = body.get("spec") or {}
    if not spec.get("containers"):
        name = body["metadata"]["name"]
        raise statuses.invalid(
            "Pod", "", name, field="spec.containers", why="Required value", reason="FieldValueRequired"
        )
    return {"spec": {**_POD_DEFAULTS, **spec}, "status": {"phase": "Pending", "qosClass": "BestEffort"}}


def _new_node(body: Body) -> Body:
    """Admission marks every new node as not ready; whoever finds it ready takes that away."""
    spec = dict(body.get("spec") or {})
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    if taint not in (taints := list(spec.get("taints") or [])):
        spec["taints"] = [*taints, taint]
    return {"spec": spec}


def changed(resource: Resource, old: Body, wanted: Body, *, subresource: str) -> Body:
    """What an update of an object, or of its status, writes. Raises ApiError 409 or 422."""
    name = old["metadata"]["name"]
    metadata = dict(wanted.get("metadata") or {})
    version, uid = metadata.get("resourceVersion"), metadata.get("uid")
    if version and version != old["metadata"]["resourceVersion"]:
        raise statuses.conflict(resource, name)
    if uid and uid != old["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old['metadata']['uid']}"
        raise statuses.conflict(resource, name, why)
    metadata = {each: value for each, value in metadata.items() if each not in (*_SETTLED, "generation")}
    metadata |= {each: old["metadata"][each] for each in (*_SETTLED, "generation") if each in old["metadata"]}
    if subresource == "status":
        return _status_changed(resource, old, wanted, metadata)
    result = {**wanted, "metadata": metadata}
    if resource.status:
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    if resource.kind == "Pod":
        _check_pod(name, old["spec"], result.get("spec") or {})
    if resource.plural in _COUNTED and result.get("spec") != old.get("spec"):
        metadata["generation"] = int(old["metadata"].get("generation", 0)) + 1
    return result


def _status_changed(resource: Resource, old: Body, wanted: Body, metadata: Body) -> Body:
    result = {**old, "status": wanted.get("status") or {}}
    if not resource.custom:
        metadata["ownerReferences"] = old["metadata"].get("ownerReferences")
        result["metadata"] = {each: value for each, value in metadata.items() if value is not None}
    return result


def _check_pod(name: str, old: Body, new: Body) -> None:
    def fixed(spec: Body) -> Body:
        kept: Body = {each: value for each, value in spec.items() if each not in _POD_CHANGEABLE}
        for group in ("containers", "initContainers"):
            kept[group] = [{**each, "image": ""} for each in spec.get(group) or ()]
        return kept

    if fixed(old) != fixed(new):
        why = (
            "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to "
            "existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously "
            "negative)"
        )
        raise statuses.invalid("Pod", "", name, field="spec", why=why, reason="FieldValueForbidden")


def deleted(resource: Resource, old: Body, *, grace: int | None, now: float) -> Body | None:
    """What a deletion leaves for now: None, or the object with the time when its grace is over."""
    grace = _grace(resource, old, grace)
    metadata = old["metadata"]
    finalizers = metadata.get("finalizers") or []
    if grace <= 0 and not finalizers:
        return None
    before = metadata.get("deletionGracePeriodSeconds")
    if before is not None and grace >= before:
        return old
    result = dict(metadata)
    if before is None:
        asked = now
        if "generation" in result:
            result["generation"] += 1
    else:
        asked = unix(metadata["deletionTimestamp"]) - before
    result |= {"deletionTimestamp": rfc3339(asked + grace), "deletionGracePeriodSeconds": grace}
    return {**old, "metadata": result}


def _grace(resource: Resource, old: Body, asked: int | None) -> int:
    if resource.kind != "Pod":
        return 0
    if not old["spec"].get("nodeName") or (old.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0  # nobody runs it
    if asked is None:
        return int(old["spec"].get("terminationGracePeriodSeconds", 30))
    return max(asked, 0)


def with_condition(body: Body, condition: Body) -> Body:
    """The object with this condition in its status, in the place of its type's former one."""
    status = dict(body.get("status") or {})
    others = [each for each in status.get("conditions") or () if each.get("type") != condition["type"]]
    return {**body, "status": {**status, "conditions": [*others, condition]}}
