"""The known objects of a cluster: pods and nodes. Pure.

A view has only the fields that selection and signals read: about half a kilobyte of an API object of five kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

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
class ClusterSnapshot:
    """All known pods and nodes. ``nodes``: None while the daemon may not read them."""

    pods: Mapping[Key, PodView]
    nodes: Mapping[str, NodeView] | None


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
