"""JSON merge patch (RFC 7386), and Kubernetes' strategic merge without its directives. Pure.

All take what is there and give what shall be, sharing parts with their arguments.
"""

from __future__ import annotations

from typing import Any, Final

from tests.support.kube import statuses

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"

_KEYS: Final = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "ownerReferences": "uid",
    "addresses": "type",
    "imagePullSecrets": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "podIPs": "ip",
}
"""What tells the elements of a list apart, by the list's name. All others, taints, tolerations and containerStatuses
among them, are replaced as wholes."""


def apply(kind: str, target: Any, patch: Any) -> Any:
    """``kind`` is a media type. Raises ApiError 415."""
    match kind:
        case "application/merge-patch+json":
            return merge(target, patch)
        case "application/strategic-merge-patch+json":
            return strategic(target, patch)
    raise statuses.unsupported_media([MERGE, STRATEGIC])


def merge(target: Any, patch: Any) -> Any:
    """Maps are merged, nulls remove, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def strategic(target: Any, patch: Any) -> Any:
    """Like a merge, but known lists are merged by key."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, list):
            result[name] = _list(name, result.get(name) or [], value)
        else:
            result[name] = strategic(result.get(name), value)
    return result


def _list(name: str, there: list[Any], patch: list[Any]) -> list[Any]:
    key = _KEYS.get(name)
    if key is None or not all(isinstance(each, dict) for each in patch):
        return patch
    result = list(there)
    for each in patch:
        place = next((at for at, old in enumerate(result) if old.get(key) == each.get(key)), None)
        if place is None:
            result.append(each)
        else:
            result[place] = strategic(result[place], each)
    return result
