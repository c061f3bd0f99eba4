"""What is known of a cluster: pods, nodes, and how events change that. Pure.

Views hold only what selection and signals read: half a kilobyte of an API object of five.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import is_, is_not
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

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
        return self.key

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True)
class NodeView:
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
        return self.key.name


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects of one kind at one moment: a list replaces what was known."""

    kind: type[PodView] | type[NodeView]
    objects: tuple[PodView, ...] | tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    object: PodView | NodeView


@dataclass(frozen=True, slots=True)
class Gone:
    """An object was deleted, or left the selector; this is its last state."""

    object: PodView | NodeView


@dataclass(frozen=True, slots=True)
class NodesHidden:
    """Nodes may not be read (403): nothing follows from them until they are listed."""


ClusterEvent = Listed | Seen | Gone | NodesHidden


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """``pods`` and ``nodes`` are None until they were listed completely, ``nodes`` also while they are hidden."""

    pods: Mapping[Key, PodView] | None = None
    nodes: Mapping[str, NodeView] | None = None
    nodes_hidden: bool = False

    @property
    def complete(self) -> bool:
        return self.pods is not None and (self.nodes is not None or self.nodes_hidden)

    def apply(self, events: Iterable[ClusterEvent]) -> ClusterSnapshot:
        """Return the snapshot after ``events``, which come in the server's order.

        ADDED for a known object changes it. Older states of the same object (by UID) are dropped, and so is the
        deletion of an object that was recreated. A list always wins, even with lower versions: the server's store may
        have been restored (rule R11).
        """
        tables: dict[type, dict[Any, Any] | None] = {
            PodView: None if self.pods is None else _copy(self.pods),
            NodeView: None if self.nodes is None else _copy(self.nodes),
        }
        hidden = self.nodes_hidden
        for event in events:
            match event:
                case Listed(kind, objects):
                    tables[kind] = {each.id: each for each in objects}
                    hidden = hidden and kind is not NodeView
                case NodesHidden():
                    tables[NodeView], hidden = None, True
                case Seen(one) if (table := tables[type(one)]) is not None:
                    if not outdated(one, table.get(one.id)):
                        table[one.id] = one
                case Gone(one) if (table := tables[type(one)]) is not None:
                    if (known := table.get(one.id)) is not None and known.uid == one.uid:
                        del table[one.id]
        pods, nodes = tables[PodView], tables[NodeView]
        return ClusterSnapshot(
            pods=None if pods is None else MappingProxyType(pods),
            nodes=None if nodes is None else MappingProxyType(nodes),
            nodes_hidden=hidden,
        )


def _copy(known: Mapping[K, V]) -> dict[K, V]:
    """A proxy's own ``copy`` is fast; ``dict(proxy)`` copies item by item."""
    return known.copy() if isinstance(known, MappingProxyType) else dict(known)


def different(before: Mapping[K, V], after: Mapping[K, V]) -> list[K]:
    """Return the keys whose value is another object than before, or is gone. Fast where nearly all are the same."""
    if before is after:
        return []
    if len(before) == len(after) and all(map(is_, before, after)):
        return list(compress(after, map(is_not, before.values(), after.values())))
    news = [key for key, value in after.items() if before.get(key) is not value]
    return [*news, *(key for key in before if key not in after)]


def outdated(seen: PodView | NodeView, known: PodView | NodeView | None) -> bool:
    """Whether ``seen`` is an earlier state of the same object than ``known``."""
    return known is not None and known.uid == seen.uid and older(seen.version, known.version)


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
