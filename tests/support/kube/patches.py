"""JSON patch (RFC 6902), JSON merge patch (RFC 7386), and Kubernetes' strategic merge with its directives. Pure.

All functions take the old object and return the new one, which may share parts with the arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.support.kube import statuses

JSON: Final = "application/json-patch+json"
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
"""The field that identifies the elements of a list, by the list's name. All other lists are replaced as a whole, for
example taints, tolerations and containerStatuses.
"""


def apply(kind: str, target: Any, patch: Any) -> Any:
    """Apply ``patch``. ``kind``: its media type. Raises ApiError 415, and 422 for operations that cannot be done."""
    match kind:
        case "application/json-patch+json":
            return operations(target, patch)
        case "application/merge-patch+json":
            return merge(target, patch)
        case "application/strategic-merge-patch+json":
            return strategic(target, patch)
    raise statuses.unsupported_media([JSON, MERGE, STRATEGIC])


def operations(target: Any, patch: Sequence[Mapping[str, Any]]) -> Any:
    """Apply a JSON patch: its operations add, replace, remove and test, one after another."""
    result = copy.deepcopy(target)
    for each in patch:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        try:
            place = result
            for part in way:
                place = place[int(part)] if isinstance(place, list) else place[part]
            _do(each["op"], place, last, each.get("value"))
        except (LookupError, TypeError, ValueError) as error:
            raise statuses.unprocessable(f"{each['op']} operation does not apply: {each['path']}: {error}") from None
    return result


def _do(operation: str, place: Any, last: str, value: Any) -> None:
    where = (len(place) if last == "-" else int(last)) if isinstance(place, list) else last
    match operation:
        case "add" if isinstance(place, list):
            place.insert(where, value)
        case "add":
            place[where] = value
        case "replace" if place[where] is not None:
            place[where] = value
        case "remove":
            del place[where]
        case "test" if place[where] == value:
            pass
        case _:
            raise ValueError(f"testing value {where} failed" if operation == "test" else f"unexpected kind {operation}")


def merge(target: Any, patch: Any) -> Any:
    """Apply a merge patch: maps are merged, a null removes a value, any other value replaces one."""
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
    """Apply a strategic merge patch: like a merge patch, but known lists are merged by key."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) and patch.get("$patch") != "replace" else {}
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None:
            result.pop(name, None)
        elif isinstance(value, list):
            result[name] = _list(name, result.get(name) or [], value)
        else:
            result[name] = strategic(result.get(name), value)
    for directive, value in patch.items():
        what, _, name = directive.partition("/")
        if what == "$deleteFromPrimitiveList":
            result[name] = [each for each in result.get(name) or [] if each not in value]
        elif what == "$setElementOrder" and name in result:
            result[name] = _ordered(name, result[name], value)
        elif what == "$retainKeys":
            result = {each: result[each] for each in result if each in value}
    return result


def _list(name: str, there: list[Any], patch: list[Any]) -> list[Any]:
    key = _KEYS.get(name)
    if key is None or not all(isinstance(each, dict) for each in patch):
        return patch
    result = [] if any(each.get("$patch") == "replace" for each in patch) else list(there)
    for each in patch:
        place = next((at for at, old in enumerate(result) if old.get(key) == each.get(key)), None)
        if each.get("$patch") == "delete":
            result = [old for at, old in enumerate(result) if at != place]
        elif each.get("$patch") == "replace" and key not in each:
            continue
        elif place is None:
            result.append({field: value for field, value in each.items() if not field.startswith("$")})
        else:
            result[place] = strategic(result[place], each)
    return result


def _ordered(name: str, there: list[Any], order: list[Any]) -> list[Any]:
    """Return the elements in the given order; elements that ``order`` does not name come last."""
    key = _KEYS.get(name)
    places = {(each.get(key) if isinstance(each, dict) else each): at for at, each in enumerate(order)}
    return sorted(there, key=lambda each: places.get(each.get(key) if isinstance(each, dict) else each, len(places)))
