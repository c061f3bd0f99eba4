"""Classes by name: dataclasses, named tuples and enumerations of the training script, and factories."""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
from collections.abc import Mapping
from typing import Final

FACTORIES: Final[Mapping[str, type]] = {
    kind.__name__: kind for kind in (bool, int, float, str, bytes, list, tuple, set, dict, collections.OrderedDict)
}
"""The factories that a ``defaultdict`` may have."""


def name_of(kind: type) -> str:
    """Return the name by which :func:`imported` finds a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def imported(name: str) -> type | None:
    """Return the class ``module:Class`` of a module that is imported already; None if there is none.

    No module is imported. A class has only the name of its definition.
    """
    module, _, path = name.partition(":")
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found if isinstance(found, type) and name_of(found) == name else None


def is_named_tuple(kind: type) -> bool:
    """Whether the class is a named tuple."""
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple)


def is_plain_dataclass(kind: type) -> bool:
    """Whether the class is a dataclass whose values contain only their fields (and not also the items of a list)."""
    if not dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum):
        return False
    try:
        object.__new__(kind)
    except TypeError:
        return False
    return True
