"""Strict JSON, without the NaN and infinity that Python's encoder writes but JSON does not have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any


def null(_: float) -> None:
    """Return None, which replaces NaN and infinity by default."""


def to_text(
    value: Any,
    *,
    default: Callable[[Any], Any] | None = None,
    instead: Callable[[float], Any] = null,
    sort_keys: bool = False,
) -> str:
    """Return one line of JSON. ``default`` is as for ``json.dumps``, ``instead`` as for :func:`finite`."""

    def dumps(plain: Any) -> str:
        return json.dumps(plain, separators=(",", ":"), default=default, sort_keys=sort_keys, allow_nan=False)

    try:
        return dumps(value)
    except ValueError:
        return dumps(finite(value, instead=instead))


def finite_number(value: object) -> float | None:
    """Return a finite number read from JSON; None for anything else, including true and false."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def finite(value: Any, *, instead: Callable[[float], Any] = null) -> Any:
    """Return ``value`` with each number in it that is not finite replaced by ``instead`` of it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else instead(value)
    if isinstance(value, Mapping):
        return {key: finite(item, instead=instead) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item, instead=instead) for item in value]
    return value
