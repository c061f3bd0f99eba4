"""What is known of a cluster: pods and nodes. Pure.

Views hold only what selection and signals read: about half a kilobyte of an API object of five kilobytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import is_, is_not
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Key(NamedTuple):
    """The name of an object. Nodes have no namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Condition:
    """``status`` is "True", "False" or "Unknown"; ``since``: its last transition in Unix seconds, if known."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Taint:
    """``added`` in Unix seconds, if the server says so (it does for NoExecute only)."""

    key: str
    value: str = ""
    effect: str = ""
    added: float | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """One of a pod's own containers (no init container). ``limits`` are quantities as written."""

    name: str
    limits: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    finished: int | None = None
    """Its exit code, if it has ended and is not restarted."""
    life: str = ""
    """Identifies this run of the container among its restarts; empty if unknown."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. ``version``: its resourceVersion. ``deleting``: its deletionTimestamp in Unix seconds, which is when its
    grace is over, not when the deletion was requested. ``owner``: the UID of its controller. ``grace``: seconds that
    its containers have to end. ``started``: when its kubelet took it, in Unix seconds.
    """

    key: Key
    uid: str
    version: str
    phase: str = ""
    reason: str = ""
    node: str = ""
    deleting: float | None = None
    conditions: tuple[Condition, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    owner: str = ""
    hostname: str = ""
    subdomain: str = ""
    ip: str = ""
    host_ip: str = ""
    host_network: bool = False
    containers: tuple[Container, ...] = ()
    grace: float = 30.0
    started: float | None = None

    @property
    def id(self) -> Key:
        """What identifies the pod among those of a cluster: its namespace and name."""
        return self.key

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of the type ``kind``; None if the pod has none."""
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. ``version``: its resourceVersion. ``unschedulable``: it is cordoned, and takes no new pods."""

    key: Key
    uid: str
    version: str
    conditions: tuple[Condition, ...] = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)

    @property
    def id(self) -> str:
        """What identifies the node among those of a cluster: its name."""
        return self.key.name


@dataclass(frozen=True, slots=True)
class Delta(Generic[K]):
    """What was changed in a mapping: all its values but those at ``keys`` are the same objects as in ``before``."""

    before: Mapping[K, Any]
    keys: Collection[K]


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All pods and nodes that are known. ``nodes`` is None while they may not be read: nothing follows from them.

    ``changed``: what was changed in ``pods`` last, if that is known.
    """

    pods: Mapping[Key, PodView]
    nodes: Mapping[str, NodeView] | None
    changed: Delta[Key] | None = field(default=None, compare=False, repr=False)


def different(before: Mapping[K, V], after: Mapping[K, V], last: Delta[K] | None = None) -> Collection[K]:
    """Return the keys whose value is another object than before, or is gone. Fast where nearly all are the same.

    ``last``: what was changed in ``after`` last. If it was changed from ``before``, nothing is compared, and a key may
    be among the returned ones whose value is the same again.
    """
    if before is after:
        return []
    if last is not None and last.before is before:
        return last.keys
    if len(before) == len(after) and all(map(is_, before, after)):
        return list(compress(after, map(is_not, before.values(), after.values())))
    news = [key for key, value in after.items() if before.get(key) is not value]
    return [*news, *(key for key in before if key not in after)]


def copied(known: Mapping[K, V]) -> dict[K, V]:
    """Return a copy. ``dict(known)`` takes ten times as long where keys were deleted."""
    return known.copy() if isinstance(known, dict) else dict(known)


def older(version: str, than: str) -> bool:
    """Whether one resourceVersion precedes another of the same resource; False if that cannot be told.

    Decimal numbers without leading zeros are compared; others are not comparable (``CompareResourceVersion`` of
    Kubernetes' apimachinery).
    """
    if not (_is_number(version) and _is_number(than)):
        return False
    return (len(version), version) < (len(than), than)


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdigit() and not version.startswith("0")
