"""Label and field selectors: makes a test of an object's labels or fields from the text of a query. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from tests.support.kube import statuses

Test = Callable[[Mapping[str, str]], bool]

_KEY: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_IN_SET: Final = re.compile(rf"\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*$")
_EQUAL: Final = re.compile(rf"\s*({_KEY})\s*(==|=|!=)\s*({_VALUE})\s*$")
_EXISTS: Final = re.compile(rf"\s*(!?)\s*({_KEY})\s*$")
_BETWEEN: Final = re.compile(r",(?![^()]*\))")


def everything(_: Mapping[str, str]) -> bool:
    return True


@lru_cache(maxsize=256)
def labels(text: str) -> Test:
    """Return the test of a label selector, as ``a=b,c in (d,e),!f``; all parts must match. Raises ApiError 400 if the
    text is not a selector.
    """
    if not text.strip():
        return everything
    tests = tuple(_requirement(part, text) for part in _BETWEEN.split(text))
    return tests[0] if len(tests) == 1 else lambda has: all(test(has) for test in tests)


def _requirement(part: str, whole: str) -> Test:
    if found := _IN_SET.match(part):
        key, operator, inside = found.groups()
        values = frozenset(each.strip() for each in inside.split(","))
        if operator == "in":
            return lambda has: key in has and has[key] in values
        return lambda has: has.get(key) not in values
    if found := _EQUAL.match(part):
        key, operator, value = found.groups()
        if operator == "!=":
            return lambda has: has.get(key) != value
        return lambda has: has.get(key) == value
    if found := _EXISTS.match(part):
        absent, key = found.groups()
        return (lambda has: key not in has) if absent else (lambda has: key in has)
    raise statuses.bad_request(f"unable to parse requirement: found '{part.strip()}' in '{whole}'")


def as_text(selector: Mapping[str, Any]) -> str:
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for each in selector.get("matchExpressions") or ():
        key, values = each["key"], ",".join(each.get("values") or ())
        words = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        parts.append(words.get(each["operator"], f"!{key}"))
    return ",".join(parts)


def fields(text: str, known: frozenset[str]) -> Test:
    """Return the test of a field selector, as ``metadata.name=a,spec.nodeName!=b``. Raises ApiError 400 for a field
    that is not in ``known``.
    """
    if not text.strip():
        return everything
    tests: list[Test] = []
    for part in text.split(","):
        field, operator, value = re.split(r"(==|!=|=)", part, maxsplit=1)
        if field not in known:
            raise statuses.bad_request(f"field label not supported: {field}")
        tests.append(_field(field, value, equal=operator != "!="))
    return lambda has: all(test(has) for test in tests)


def _field(field: str, value: str, *, equal: bool) -> Test:
    return lambda has: (has.get(field, "") == value) == equal
