"""Changes of pods and nodes as they happen in clusters, one function each. They do not use the API."""

from __future__ import annotations

from typing import Any

from tests.support.kube import bodies
from tests.support.kube.clock import rfc3339
from tests.support.kube.server import KubeServer


def taint(kube: KubeServer, node: str, key: str, value: str = "", effect: str = "NoSchedule") -> None:
    """Add a taint as ``kubectl taint`` does. A taint with the effect NoExecute has the time when it was added."""
    added = rfc3339(kube.clock.now()) if effect == "NoExecute" else ""
    others = [each for each in _taints(kube, node) if (each["key"], each["effect"]) != (key, effect)]
    kube.change("nodes", node, {"spec": {"taints": [*others, bodies.taint(key, value, effect, added=added)]}})


def untaint(kube: KubeServer, node: str, key: str) -> None:
    kube.change("nodes", node, {"spec": {"taints": [each for each in _taints(kube, node) if each["key"] != key]}})


def condition(
    kube: KubeServer,
    kind: str,
    name: str,
    type_: str,
    status: str | bool,
    *,
    reason: str = "",
    namespace: str = "default",
) -> None:
    """Set a condition of a pod or node, with the present time. ``kind``: the plural."""
    body = bodies.condition(type_, status, reason=reason, since=rfc3339(kube.clock.now()))
    kube.change(kind, name, {"status": {"conditions": [body]}}, namespace=namespace)


def lose_node(kube: KubeServer, node: str) -> None:
    """Do what the node controller does when a node sends no more reports. The node's pods become not ready, too."""
    condition(kube, "nodes", node, "Ready", "Unknown", reason="NodeStatusUnknown")
    taint(kube, node, "node.kubernetes.io/unreachable")
    taint(kube, node, "node.kubernetes.io/unreachable", effect="NoExecute")
    for pod in kube.all("pods"):
        if pod["spec"].get("nodeName") == node:
            metadata = pod["metadata"]
            condition(kube, "pods", metadata["name"], "Ready", False, namespace=metadata["namespace"])


def regain_node(kube: KubeServer, node: str) -> None:
    """Do what happens when the node sends reports again: the node and its pods become ready."""
    condition(kube, "nodes", node, "Ready", True, reason="KubeletReady")
    untaint(kube, node, "node.kubernetes.io/unreachable")
    for pod in kube.all("pods"):
        if pod["spec"].get("nodeName") == node:
            metadata = pod["metadata"]
            condition(kube, "pods", metadata["name"], "Ready", True, namespace=metadata["namespace"])


def fail(kube: KubeServer, pod: str, *, reason: str = "", namespace: str = "default", code: int = 137) -> None:
    """Let a pod fail by itself, or by its node (``reason`` "Evicted"). The object stays."""
    state = {"terminated": {"exitCode": code, "reason": "Error"}}
    status: dict[str, Any] = {
        "phase": "Failed",
        "conditions": [bodies.condition("Ready", False), bodies.condition("ContainersReady", False)],
        "containerStatuses": [bodies.container_status(ready=False, state=state)],
    }
    kube.change("pods", pod, {"status": {**status, **({"reason": reason} if reason else {})}}, namespace=namespace)


def recreate(kube: KubeServer, pod: str, *, namespace: str = "default") -> str:
    """Remove a pod at once, and make one of the same name, as controllers do. Return the new UID."""
    old = kube.get("pods", pod, namespace=namespace)
    kube.remove("pods", pod, namespace=namespace)
    kept = {"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"}
    metadata = {name: value for name, value in old["metadata"].items() if name not in kept}
    return str(kube.put("pods", {**old, "metadata": metadata})["metadata"]["uid"])


def _taints(kube: KubeServer, node: str) -> list[dict[str, str]]:
    return list(kube.get("nodes", node)["spec"].get("taints") or [])
