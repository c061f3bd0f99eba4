"""The known objects of a cluster: pods and nodes. Pure.

A view has only the fields that selection and signals read: about half a kilobyte of an API object of five kilobytes.
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
    """A condition of a pod or node. ``status``: "True", "False" or "Unknown". ``since``: its last transition in Unix
    seconds, if known.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node. ``added``: in Unix seconds, None if the server gives no time (it gives one for NoExecute
    only).
    """

    key: str
    value: str = ""
    effect: str = ""
    added: float | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """One of a pod's containers, except init containers. ``limits``: quantities as the pod has them."""

    name: str
    limits: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    finished: int | None = None
    """The exit code, if the container has ended and is not restarted."""
    life: str = ""
    """Identifies this run of the container among its restarts; empty if unknown."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. ``version``: its resourceVersion. ``deleting``: its deletionTimestamp in Unix seconds; this is the end
    of its grace period, not the time of the request. ``owner``: the UID of its controller. ``grace``: seconds for its
    containers to end. ``started``: when its kubelet accepted it, in Unix seconds.
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
        """The pod's namespace and name, which identify it among the present pods of a cluster."""
        return self.key

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of the type ``kind``; None if the pod has none."""
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. ``version``: its resourceVersion. ``unschedulable``: it is cordoned and gets no new pods."""

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
        """The node's name, which identifies it among the present nodes of a cluster."""
        return self.key.name


@dataclass(frozen=True, slots=True)
class Delta(Generic[K]):
    """What has changed in a mapping: except at ``keys``, its values are the same objects as in ``before``."""

    before: Mapping[K, Any]
    keys: Collection[K]


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All known pods and nodes. ``nodes``: None while the daemon may not read them.

    ``changed``: the last change of ``pods``, if it is known.
    """

    pods: Mapping[Key, PodView]
    nodes: Mapping[str, NodeView] | None
    changed: Delta[Key] | None = field(default=None, compare=False, repr=False)


def different(before: Mapping[K, V], after: Mapping[K, V], last: Delta[K] | None = None) -> Collection[K]:
    """Return the keys whose value is another object than before, or is gone. Fast if nearly all values are the same.

    ``last``: the last change of ``after``. If it began with ``before``, its keys are returned without a comparison, and
    some of their values may be the same again.
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
    """Return a copy. ``dict(known)`` takes ten times as long if keys were deleted."""
    return known.copy() if isinstance(known, dict) else dict(known)


def older(version: str, than: str) -> bool:
    """Whether one resourceVersion comes before another of the same resource; False if they cannot be compared.

    Only decimal numbers without leading zeros can be compared, as in ``CompareResourceVersion`` of Kubernetes'
    apimachinery.
    """
    if not (_is_number(version) and _is_number(than)):
        return False
    return (len(version), version) < (len(than), than)


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdigit() and not version.startswith("0")
