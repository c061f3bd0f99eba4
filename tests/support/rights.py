"""The permissions that each part of the project needs from an API server. Manifests grant them, and tests use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple


class Right(NamedTuple):
    """One verb on one resource of an API group; ``name``: only for the object of this name."""

    group: str
    resource: str
    verb: str
    name: str = ""


def _rights(group: str, resource: str, *verbs: str, name: str = "") -> frozenset[Right]:
    return frozenset(Right(group, resource, verb, name) for verb in verbs)


DAEMON: Final = _rights("", "pods", "get", "list", "watch") | _rights("", "events", "create")
"""For ``hvd-discover --source kubernetes``: to follow a job, and to write events about it."""

NODES: Final = _rights("", "nodes", "get", "list", "watch")
"""For the same, to follow nodes; optional."""

REAP: Final = _rights("", "pods", "delete")
"""For ``--reap-failed``."""

EXEC: Final = _rights("", "pods", "get") | _rights("", "pods/exec", "get", "create")
"""For ``hvd-elastic run --rsh pod``."""

SLEEP: Final[Mapping[str, frozenset[Right]]] = {
    "mpi": _rights("kubeflow.org", "mpijobs", "get", "patch", name="digits") | _rights("", "pods", "list", "delete"),
    "statefulset": _rights("apps", "statefulsets/scale", "get", "patch", name="digits-worker")
    | _rights("", "pods", "list"),
}
"""For ``hvd-elastic run --sleep-releases pods``, by the kind of workload."""

READ_JOB: Final[Mapping[str, frozenset[Right]]] = {
    "mpi": _rights("kubeflow.org", "mpijobs", "get", name="digits"),
    "et": _rights("kai.alibabacloud.com", "trainingjobs", "get", name="digits"),
    "statefulset": _rights("apps", "statefulsets", "get", name="digits-worker"),
}
"""By operator, for reading the job of the manifests: optional, except for a StatefulSet's selector."""


def granted(rules: Iterable[Mapping[str, Any]]) -> frozenset[Right]:
    """Return the permissions that the rules of a Role grant."""
    return frozenset(
        Right(group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    )


def rules(rights: Iterable[Right]) -> list[dict[str, Any]]:
    """Return the rules of a Role that grants exactly these permissions."""
    return [
        {
            "apiGroups": [right.group],
            "resources": [right.resource],
            "verbs": [right.verb],
            **({"resourceNames": [right.name]} if right.name else {}),
        }
        for right in sorted(rights)
    ]
