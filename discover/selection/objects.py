"""What is known of a cluster: pods, the nodes under them, and how events change that. Pure.

Views hold what selection and signals read of an object, and nothing else: an
API object of five kilobytes becomes one of half a kilobyte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from operator import is_, is_not
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Key(NamedTuple):
    """What an object is known by. Nodes have no namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Condition:
    """``status`` is "True", "False" or "Unknown"; ``since``: its last transition, in Unix seconds if known."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Taint:
    """``added`` is in Unix seconds, if the server says so (it does for NoExecute only)."""

    key: str
    value: str = ""
    effect: str = ""
    added: float | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """One of a pod's own containers (no init container). ``limits`` are quantities as they were written."""

    name: str
    limits: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    ports: tuple[int, ...] = ()
    finished: int | None = None
    """Its exit code, if it has ended and is not being started again."""
    life: str = ""
    """Which of the containers that one after the other have this name in the pod; empty if that is not told."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. ``version`` is its resourceVersion; ``deleting`` its deletionTimestamp in Unix seconds, which is
    when its grace is over, and not when the deletion was asked for. ``owner`` is the UID of its controller.
    ``grace``: seconds that its containers are given to end; ``started``: Unix seconds when its kubelet took it."""

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

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node."""

    key: Key
    uid: str
    version: str
    conditions: tuple[Condition, ...] = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True)
class PodsListed:
    """All pods there are, as of one moment: a list replaces whatever was known."""

    pods: tuple[PodView, ...]


@dataclass(frozen=True, slots=True)
class PodSeen:
    """A pod was added or changed."""

    pod: PodView


@dataclass(frozen=True, slots=True)
class PodGone:
    """A pod was deleted, or left the selector; this was its last state."""

    pod: PodView


@dataclass(frozen=True, slots=True)
class NodesListed:
    """All nodes there are."""

    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class NodeSeen:
    node: NodeView


@dataclass(frozen=True, slots=True)
class NodeGone:
    node: NodeView


@dataclass(frozen=True, slots=True)
class NodesHidden:
    """Nodes may not be read (403): nothing is concluded from them until they are listed."""


ClusterEvent = PodsListed | PodSeen | PodGone | NodesListed | NodeSeen | NodeGone | NodesHidden


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """``pods`` and ``nodes`` are None until they were listed whole, and ``nodes`` while they are hidden."""

    pods: Mapping[Key, PodView] | None = None
    nodes: Mapping[str, NodeView] | None = None
    nodes_hidden: bool = False

    @property
    def whole(self) -> bool:
        """Whether something can be said of the cluster: nothing is published before."""
        return self.pods is not None and (self.nodes is not None or self.nodes_hidden)

    def apply(self, events: Iterable[ClusterEvent]) -> ClusterSnapshot:
        """What is known after ``events``, which come in the order in which the server sent them.

        ADDED for a known object is a change of it. What is older than what is known of the same object (by UID) is
        dropped, and so is the end of an object that another one of its name has followed. A list always wins, even
        with lower versions: the server's own store may have been restored. (Rule R11.)
        """
        pods = None if self.pods is None else _copy(self.pods)
        nodes = None if self.nodes is None else _copy(self.nodes)
        hidden = self.nodes_hidden
        for event in events:
            match event:
                case PodsListed(listed):
                    pods = {pod.key: pod for pod in listed}
                case NodesListed(listed_nodes):
                    nodes, hidden = {node.key.name: node for node in listed_nodes}, False
                case NodesHidden():
                    nodes, hidden = None, True
                case PodSeen(pod) if pods is not None:
                    if not outdated(pod, pods.get(pod.key)):
                        pods[pod.key] = pod
                case PodGone(pod) if pods is not None:
                    if (known := pods.get(pod.key)) is not None and known.uid == pod.uid:
                        del pods[pod.key]
                case NodeSeen(node) if nodes is not None:
                    if not outdated(node, nodes.get(node.key.name)):
                        nodes[node.key.name] = node
                case NodeGone(node) if nodes is not None:
                    if (there := nodes.get(node.key.name)) is not None and there.uid == node.uid:
                        del nodes[node.key.name]
        return replace(
            self,
            pods=None if pods is None else MappingProxyType(pods),
            nodes=None if nodes is None else MappingProxyType(nodes),
            nodes_hidden=hidden,
        )


def _copy(known: Mapping[K, V]) -> dict[K, V]:
    """A proxy copies what is under it at once; made into a ``dict`` it is copied item by item."""
    return known.copy() if isinstance(known, MappingProxyType) else dict(known)


def different(before: Mapping[K, V], after: Mapping[K, V]) -> list[K]:
    """Keys that are another object's than before, or nobody's any more.

    Among ten thousand that are the same a few are found in the time that it takes to look at each once.
    """
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
    """Whether one resourceVersion came before another of the same resource; False if that cannot be told.

    Decimal numbers without leading zeros, compared as such; anything else is not comparable
    (Kubernetes, apimachinery ``CompareResourceVersion``).
    """
    if not (_is_number(version) and _is_number(than)):
        return False
    return (len(version), version) < (len(than), than)


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdigit() and not version.startswith("0")
