"""What each part of the project asks of an API server, as data: what the manifests grant, and what tests run under."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple


class Right(NamedTuple):
    """One verb on one resource of an API group; ``name`` if it is for one object only."""

    group: str
    resource: str
    verb: str
    name: str = ""


def _rights(group: str, resource: str, *verbs: str, name: str = "") -> frozenset[Right]:
    return frozenset(Right(group, resource, verb, name) for verb in verbs)


DAEMON: Final = _rights("", "pods", "get", "list", "watch") | _rights("", "events", "create")
"""What ``hvd-discover --source kubernetes`` needs to follow a job, and to say what becomes of it."""

NODES: Final = _rights("", "nodes", "get", "list", "watch")
"""What it needs beside that to see what becomes of nodes. It works without."""

REAP: Final = _rights("", "pods", "delete")
"""``--reap-failed``."""

CONFIGMAP: Final = (
    _rights("", "configmaps", "get", "patch", name="digits-hosts")
    | _rights("coordination.k8s.io", "leases", "get", "update", name="digits-hosts")
    | _rights("coordination.k8s.io", "leases", "create")
)
"""``--configmap digits-hosts``; the ConfigMap is there."""

EXEC: Final = _rights("", "pods", "get") | _rights("", "pods/exec", "get", "create")
"""``hvd-elastic run --rsh pod``."""

SLEEP: Final[Mapping[str, frozenset[Right]]] = {
    "mpi": _rights("kubeflow.org", "mpijobs", "get", "patch", name="digits") | _rights("", "pods", "list", "delete"),
    "statefulset": _rights("apps", "statefulsets/scale", "get", "patch", name="digits-worker")
    | _rights("", "pods", "list"),
}
"""``hvd-elastic run --sleep-releases pods``, by what makes the workers."""

READ_JOB: Final[Mapping[str, frozenset[Right]]] = {
    "mpi": _rights("kubeflow.org", "mpijobs", "get", name="digits"),
    "et": _rights("kai.alibabacloud.com", "trainingjobs", "get", name="digits"),
    "statefulset": _rights("apps", "statefulsets", "get", name="digits-worker"),
}
"""By operator: reading the job of the manifests. The daemon works without, but for a StatefulSet's selector."""


def granted(rules: Iterable[Mapping[str, Any]]) -> frozenset[Right]:
    """What the rules of a Role say."""
    return frozenset(
        Right(group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    )


def rules(rights: Iterable[Right]) -> list[dict[str, Any]]:
    """The rules of a Role that grants exactly these."""
    return [
        {
            "apiGroups": [right.group],
            "resources": [right.resource],
            "verbs": [right.verb],
            **({"resourceNames": [right.name]} if right.name else {}),
        }
        for right in sorted(rights)
    ]
