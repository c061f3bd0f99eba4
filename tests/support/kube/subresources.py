"""Subresources of objects: scale, eviction, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tests.support.kube import lifecycle, patches, selectors, statuses
from tests.support.kube.clock import rfc3339
from tests.support.kube.requests import Call
from tests.support.kube.resources import ScalePaths
from tests.support.kube.store import Record, dumps

if TYPE_CHECKING:
    from tests.support.kube.verbs import Answer, Verbs


def answer(verbs: Verbs, call: Call) -> Answer:
    """Return the answer to a request for a subresource. Raises ApiError."""
    match call.subresource, call.verb:
        case "scale", "get":
            return 200, dumps(_scale(call, verbs.existing(call)))
        case "scale", "update" | "patch":
            return 200, dumps(_rescale(verbs, call))
        case "eviction", "create":
            return _evict(verbs, call)
        case "token", "create":
            return _token(verbs, call)
    raise statuses.method_not_allowed()


def at(body: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = body
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _scale(call: Call, record: Record) -> dict[str, Any]:
    paths = _paths(call)
    body = record.body()
    metadata = {
        name: body["metadata"][name]
        for name in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if name in body["metadata"]
    }
    status: dict[str, Any] = {"replicas": at(body, paths.observed) or 0}
    selector = at(body, paths.selector)
    if selector:
        status["selector"] = selector if isinstance(selector, str) else selectors.as_text(selector)
    spec = {"replicas": replicas} if (replicas := at(body, paths.replicas)) else {}
    return {"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata, "spec": spec, "status": status}


def _paths(call: Call) -> ScalePaths:
    assert call.resource.scale is not None
    return call.resource.scale


def _rescale(verbs: Verbs, call: Call) -> dict[str, Any]:
    with verbs.store.lock:
        record = verbs.existing(call)
        shown = _scale(call, record)
        wanted = patches.apply(call.media, shown, call.json()) if call.verb == "patch" else call.json()
        version = (wanted.get("metadata") or {}).get("resourceVersion")
        if version and version != str(record.revision):
            raise statuses.conflict(call.resource, call.name)
        replicas = (wanted.get("spec") or {}).get("replicas") or 0
        if not isinstance(replicas, int) or replicas < 0:
            why = f"Invalid value: {replicas}: must be greater than or equal to 0"
            raise statuses.invalid("Scale", "autoscaling", call.name, field="spec.replicas", why=why)
        old = record.body()
        new = patches.merge(old, _nested(_paths(call).replicas, replicas))
        new = lifecycle.changed(call.resource, old, new, subresource="")
        return _scale(call, verbs.store.write(call.resource, call.key, new))


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for step in reversed(path):
        value = {step: value}
    return value


_CREATED: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _evict(verbs: Verbs, call: Call) -> Answer:
    wanted = call.json()
    with verbs.store.lock:
        record = verbs.existing(call)
        body = record.body()
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": rfc3339(verbs.clock.now()),
        }
        marked = verbs.store.write(call.resource, call.key, lifecycle.with_condition(body, condition))
        verbs.delete(call.resource, marked, wanted.get("deleteOptions") or {})
    return 201, dumps(_CREATED)


def _token(verbs: Verbs, call: Call) -> Answer:
    verbs.existing(call)
    asked = call.json().get("spec") or {}
    lasts = int(asked.get("expirationSeconds") or 3600)
    if lasts < 600:
        why = f"Invalid value: {lasts}: may not specify a duration less than 10 minutes"
        raise statuses.invalid("TokenRequest", "authentication.k8s.io", "", field="spec.expirationSeconds", why=why)
    status = {
        "token": verbs.access.issue_for(call.namespace, call.name, lasts=lasts),
        "expirationTimestamp": rfc3339(verbs.clock.now() + lasts),
    }
    answer = {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": call.name, "namespace": call.namespace},
        "spec": {**asked, "expirationSeconds": lasts, "boundObjectRef": asked.get("boundObjectRef")},
        "status": status,
    }
    return 201, dumps(answer)
