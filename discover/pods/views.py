"""Pods and nodes as the daemon keeps them, and how they are made from API objects (JSON). Pure.

A view has only the fields that verdicts and signals read: about half a kilobyte of an API object of five kilobytes.

A missing field gives an empty value, because objects appear before they are complete. A field of a wrong type is
ignored, unless that could make a host of a pod that is not one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeGuard

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class Key(NamedTuple):
    """The name of an object. Nodes have no namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a pod or node."""

    type: str
    status: str
    """As the API has it: the text True, False or Unknown."""
    reason: str = ""
    message: str = ""
    since: float | None = None
    """Its last transition in Unix seconds, if known."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""
    added: float | None = None
    """In Unix seconds, None if the server gives no time (it gives one for NoExecute only)."""


@dataclass(frozen=True, slots=True)
class Container:
    """One of a pod's containers, except init containers."""

    name: str
    limits: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """Quantities as the pod has them."""
    finished: int | None = None
    """The exit code, if the container has ended and is not restarted."""
    life: str = ""
    """Identifies this run of the container among its restarts; empty if unknown."""


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod."""

    key: Key
    uid: str
    version: str
    """Its resourceVersion."""
    phase: str = ""
    reason: str = ""
    node: str = ""
    deleting: float | None = None
    """Its deletionTimestamp in Unix seconds; this is the end of its grace period, not the time of the request."""
    conditions: tuple[Condition, ...] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    owner: str = ""
    """The UID of its controller."""
    hostname: str = ""
    subdomain: str = ""
    ip: str = ""
    host_ip: str = ""
    host_network: bool = False
    containers: tuple[Container, ...] = ()
    grace: float = 30.0
    """Seconds for its containers to end."""
    started: float | None = None
    """When its kubelet accepted it, in Unix seconds."""

    @property
    def id(self) -> Key:
        """The pod's namespace and name, which identify it among the present pods of a cluster."""
        return self.key

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of the type ``kind``; None if the pod has none."""
        return next((each for each in self.conditions if each.type == kind), None)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node."""

    key: Key
    uid: str
    version: str
    """Its resourceVersion."""
    conditions: tuple[Condition, ...] = ()
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    """It is cordoned and gets no new pods."""
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)

    @property
    def id(self) -> str:
        """The node's name, which identifies it among the present nodes of a cluster."""
        return self.key.name


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """All known pods and nodes."""

    pods: Mapping[Key, PodView]
    """In order of their keys."""
    nodes: Mapping[str, NodeView] | None
    """None while the daemon may not read them."""


def older(version: str, than: str) -> bool:
    """Whether one resourceVersion comes before another of the same resource; False if they cannot be compared.

    Only decimal numbers without leading zeros can be compared, as in ``CompareResourceVersion`` of Kubernetes'
    apimachinery.
    """
    if not (_is_decimal(version) and _is_decimal(than)):
        return False
    return (len(version), version) < (len(than), than)


def _is_decimal(version: str) -> bool:
    return version.isascii() and version.isdigit() and not version.startswith("0")


# --- made from what the API server sends


MAX_TEXT: Final = 512
"""Characters. Longer labels and annotations are dropped (kubectl keeps whole objects in one). Longer messages are cut.
"""

LIFE_LENGTH: Final = 20
"""Characters of a container's ID that are kept. They distinguish the containers of a pod, and every host has them."""

DEFAULT_GRACE: Final = 30.0
"""Seconds: the default of the API."""

_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:)(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)",
    re.ASCII,
)


def pod_view(raw: object) -> PodView:
    """Return the view of a pod. Raises ``ValueError``, in one line, if ``raw`` is not a pod."""
    whole, metadata, key = _identity(raw, "Pod")
    if not key.namespace:
        raise ValueError(f"pod {key.name!r} has no metadata.namespace")
    spec, status = _table(whole, "spec"), _table(whole, "status")
    return PodView(
        key=key,
        uid=_text(metadata, "uid"),
        version=_text(metadata, "resourceVersion"),
        phase=intern(_text(status, "phase")),
        reason=intern(_text(status, "reason")),
        node=intern(_text(spec, "nodeName")),
        deleting=_deleting(metadata, f"pod {key}"),
        conditions=_conditions(status),
        labels=_texts(metadata, "labels"),
        annotations=_texts(metadata, "annotations"),
        owner=next((_text(each, "uid") for each in _tables(metadata, "ownerReferences") if each.get("controller")), ""),
        hostname=_text(spec, "hostname"),
        subdomain=intern(_text(spec, "subdomain")),
        ip=_address(status),
        host_ip=intern(_text(status, "hostIP")),
        host_network=spec.get("hostNetwork") is True,
        containers=tuple(_containers(spec, status)),
        grace=float(grace) if _is_whole(grace := spec.get("terminationGracePeriodSeconds")) else DEFAULT_GRACE,
        started=unix_seconds(status.get("startTime")),
    )


def node_view(raw: object) -> NodeView:
    """Return the view of a node. Raises ``ValueError``, in one line, if ``raw`` is not a node."""
    whole, metadata, key = _identity(raw, "Node")
    spec = _table(whole, "spec")
    return NodeView(
        key=Key("", key.name),
        uid=_text(metadata, "uid"),
        version=_text(metadata, "resourceVersion"),
        conditions=_conditions(_table(whole, "status")),
        taints=tuple(
            Taint(
                intern(name), _text(each, "value"), intern(_text(each, "effect")), unix_seconds(each.get("timeAdded"))
            )
            for each in _tables(spec, "taints")
            if (name := _text(each, "key"))
        ),
        unschedulable=spec.get("unschedulable") is True,
        labels=_texts(metadata, "labels"),
        annotations=_texts(metadata, "annotations"),
    )


def unix_seconds(text: object) -> float | None:
    """Return a time of the API (RFC 3339, any fraction, any offset) in Unix seconds; None if ``text`` is not a time."""
    return _unix_seconds(text) if isinstance(text, str) else None


@lru_cache(maxsize=4096)  # A pod has the same time in several fields, and many pods of a job share times.
def _unix_seconds(text: str) -> float | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day, minute, second, fraction, offset = found.groups()
    leap = second == "60"  # a leap second: datetime takes none, so it is added below
    try:
        moment = datetime.fromisoformat(
            f"{day}T{minute}{'59' if leap else second}{'+00:00' if offset in 'Zz' else offset}"
        )
    except ValueError:
        return None
    return moment.timestamp() + leap + float(fraction or 0)


def _identity(raw: object, kind: str) -> tuple[Mapping[str, Any], Mapping[str, Any], Key]:
    if not isinstance(raw, dict):
        raise ValueError(f"a {kind.lower()} is a JSON object, not {type(raw).__name__}")
    said = raw.get("kind", kind)  # items of a list have no kind
    if said != kind:
        raise ValueError(f"this is a {said!r:.40}, not a {kind}")
    metadata = _table(raw, "metadata")
    name = _text(metadata, "name")
    if not name:
        raise ValueError(f"a {kind.lower()} without metadata.name")
    return raw, metadata, Key(intern(_text(metadata, "namespace")), name)


def _deleting(metadata: Mapping[str, Any], what: str) -> float | None:
    said = metadata.get("deletionTimestamp")
    moment = unix_seconds(said)
    if said is not None and moment is None:
        # If it were ignored, a pod that is being deleted would become a host.
        raise ValueError(f"{what}: metadata.deletionTimestamp {said!r:.60} is not an RFC 3339 time")
    return moment


def _conditions(status: Mapping[str, Any]) -> tuple[Condition, ...]:
    return tuple(
        _condition(
            kind,
            _text(each, "status"),
            _text(each, "reason"),
            _text(each, "message"),
            _text(each, "lastTransitionTime"),
        )
        for each in _tables(status, "conditions")
        if (kind := _text(each, "type"))
    )


@lru_cache(maxsize=4096)  # Pods of a job have most conditions in common, and share these objects.
def _condition(kind: str, status: str, reason: str, message: str, since: str) -> Condition:
    return Condition(intern(kind), intern(status), intern(reason), message[:MAX_TEXT], unix_seconds(since))


def _address(status: Mapping[str, Any]) -> str:
    """Return the pod's address: an IPv4 one if there are several, because Horovod can use no other."""
    addresses = [_text(status, "podIP"), *(_text(each, "ip") for each in _tables(status, "podIPs"))]
    given = [address for address in addresses if address]
    return next((address for address in given if ":" not in address), given[0] if given else "")


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Container]:
    over = status.get("phase") in ("Succeeded", "Failed")
    policy = "Never" if over else _text(spec, "restartPolicy") or "Always"
    statuses = {_text(each, "name"): each for each in _tables(status, "containerStatuses")}
    for each in _tables(spec, "containers"):
        name = _text(each, "name")
        yield Container(
            name=intern(name),
            limits=_quantities(_table(_table(each, "resources"), "limits")),
            finished=_finished(statuses.get(name, NOTHING), policy),
            life=_life(statuses.get(name, NOTHING)),
        )


def _finished(status: Mapping[str, Any], policy: str) -> int | None:
    code = _table(_table(status, "state"), "terminated").get("exitCode")
    if not _is_whole(code) or policy == "Always" or (policy == "OnFailure" and code != 0):
        return None
    return code


def _life(status: Mapping[str, Any]) -> str:
    """Return what identifies the container that runs, or ran last: its ID, or its start time if the runtime gives none.

    The restart count does not identify it: a kubelet that has lost its state counts from 0 again.
    """
    _, _, number = _text(status, "containerID").rpartition("/")
    return number[:LIFE_LENGTH] or _text(_table(_table(status, "state"), "running"), "startedAt")[:LIFE_LENGTH]


def _quantities(limits: Mapping[str, Any]) -> Mapping[str, str]:
    """Return quantities as text. The API also accepts numbers."""
    return MappingProxyType(
        {
            intern(str(name)): str(amount)
            for name, amount in limits.items()
            if isinstance(amount, str) or _is_number(amount)
        }
    )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    return value if isinstance(value, str) else ""


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = table.get(key)
    return value if isinstance(value, dict) else NOTHING


def _tables(table: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    value = table.get(key)
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


def _texts(table: Mapping[str, Any], key: str) -> Mapping[str, str]:
    kept = {
        intern(str(name)): value
        for name, value in _table(table, key).items()
        if isinstance(value, str) and len(value) <= MAX_TEXT
    }
    return MappingProxyType(kept) if kept else NOTHING
