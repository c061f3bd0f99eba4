"""JSON merge patch (RFC 7386), JSON patch (RFC 6902), and Kubernetes' strategic merge. Pure.

All take what is there and give what shall be, sharing parts with their arguments.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tests.support.kube import statuses

MERGE: Final = "application/merge-patch+json"
JSON: Final = "application/json-patch+json"
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

_PRIMITIVE: Final = frozenset({"finalizers"})
"""Lists of words that are joined."""


def apply(kind: str, target: Any, patch: Any) -> Any:
    """``kind`` is a media type. Raises ApiError 400, 415 or 422."""
    match kind:
        case "application/merge-patch+json":
            return merge(target, patch)
        case "application/json-patch+json":
            return operations(target, patch)
        case "application/strategic-merge-patch+json":
            return strategic(target, patch)
    raise statuses.unsupported_media([JSON, MERGE, STRATEGIC])


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
    """Like a merge, but known lists are merged by key, and ``$patch`` says replace or delete."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if name.startswith("$"):
            _directive(result, name, value)
        elif value is None:
            result.pop(name, None)
        elif isinstance(value, list):
            result[name] = _list(name, result.get(name) or [], value)
        else:
            result[name] = strategic(result.get(name), value)
    return result


def _directive(result: dict[str, Any], name: str, value: Any) -> None:
    kind, _, field = name.partition("/")
    match kind:
        case "$deleteFromPrimitiveList":
            result[field] = [each for each in result.get(field) or [] if each not in value]
        case "$retainKeys":
            for key in [key for key in result if key not in value]:
                del result[key]


def _list(name: str, there: list[Any], patch: list[Any]) -> list[Any]:
    if name in _PRIMITIVE:
        return there + [each for each in patch if each not in there]
    key = _KEYS.get(name)
    if key is None or not all(isinstance(each, dict) for each in patch):
        return patch
    if any(each.get("$patch") == "replace" and len(each) == 1 for each in patch):
        return [each for each in patch if "$patch" not in each]
    result = list(there)
    for each in patch:
        place = next((at for at, old in enumerate(result) if old.get(key) == each.get(key)), None)
        if each.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != each.get(key)]
        elif place is None:
            result.append(each)
        else:
            result[place] = strategic(result[place], each)
    return result


def operations(target: Any, patch: Any) -> Any:
    """``[{"op": "replace", "path": "/spec/replicas", "value": 2}, …]``, all or nothing."""
    if not isinstance(patch, list):
        raise statuses.bad_request(
            "error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch"
        )
    result = json.loads(json.dumps(target))
    for each in patch:
        try:
            result = _operate(result, each)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise _unprocessable(f"{each.get('op')} operation does not apply: {error}") from error
    return result


def _unprocessable(why: str) -> statuses.ApiError:
    return statuses.ApiError(
        statuses.status(422, "Invalid", f"the server rejected our request due to an error in our request: {why}")
    )


def _operate(whole: Any, operation: dict[str, Any]) -> Any:
    path = _pointer(operation["path"])
    match operation["op"]:
        case "test":
            if _at(whole, path) != operation["value"]:
                raise ValueError(f"testing path {operation['path']} value failed")
            return whole
        case "add":
            return _put(whole, path, operation["value"], insert=True)
        case "replace":
            _at(whole, path)
            return _put(whole, path, operation["value"], insert=False)
        case "remove":
            return _remove(whole, path)
        case "copy":
            return _put(whole, path, json.loads(json.dumps(_at(whole, _pointer(operation["from"])))), insert=True)
        case "move":
            source = _pointer(operation["from"])
            value = _at(whole, source)
            return _put(_remove(whole, source), path, value, insert=True)
    raise ValueError(f"unexpected kind: {operation['op']}")


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise ValueError(f"{text} is no path")
    return [each.replace("~1", "/").replace("~0", "~") for each in text.split("/")[1:]]


def _at(whole: Any, path: list[str]) -> Any:
    for step in path:
        whole = whole[int(step)] if isinstance(whole, list) else whole[step]
    return whole


def _put(whole: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent, last = _at(whole, path[:-1]), path[-1]
    if not isinstance(parent, list):
        parent[last] = value
    elif insert:
        place = len(parent) if last == "-" else int(last)
        if place > len(parent):
            raise IndexError(last)
        parent.insert(place, value)
    else:
        parent[int(last)] = value
    return whole


def _remove(whole: Any, path: list[str]) -> Any:
    parent, last = _at(whole, path[:-1]), path[-1]
    del parent[int(last) if isinstance(parent, list) else last]
    return whole
