"""What happens in clusters, in one line each: to a server's pods and nodes, past the API."""

from __future__ import annotations

from typing import Any

from tests.support.kube import bodies
from tests.support.kube.clock import rfc3339
from tests.support.kube.server import KubeServer


def taint(kube: KubeServer, node: str, key: str, value: str = "", effect: str = "NoSchedule") -> None:
    """As ``kubectl taint`` does; a taint that evicts says since when it is there."""
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
    """Of a pod or node (``kind``: the plural); its time is now."""
    body = bodies.condition(type_, status, reason=reason, since=rfc3339(kube.clock.now()))
    kube.change(kind, name, {"status": {"conditions": [body]}}, namespace=namespace)


def lose_node(kube: KubeServer, node: str) -> None:
    """What the node's controller does when it hears nothing of a node any more: its pods are not ready then."""
    condition(kube, "nodes", node, "Ready", "Unknown", reason="NodeStatusUnknown")
    taint(kube, node, "node.kubernetes.io/unreachable")
    taint(kube, node, "node.kubernetes.io/unreachable", effect="NoExecute")
    for pod in kube.all("pods"):
        if pod["spec"].get("nodeName") == node:
            metadata = pod["metadata"]
            condition(kube, "pods", metadata["name"], "Ready", False, namespace=metadata["namespace"])


def regain_node(kube: KubeServer, node: str) -> None:
    """It is heard of again, and so are its pods."""
    condition(kube, "nodes", node, "Ready", True, reason="KubeletReady")
    untaint(kube, node, "node.kubernetes.io/unreachable")
    for pod in kube.all("pods"):
        if pod["spec"].get("nodeName") == node:
            metadata = pod["metadata"]
            condition(kube, "pods", metadata["name"], "Ready", True, namespace=metadata["namespace"])


def fail(kube: KubeServer, pod: str, *, reason: str = "", namespace: str = "default", code: int = 137) -> None:
    """It ends by itself, or is ended by its node (``reason`` "Evicted"); the object stays."""
    state = {"terminated": {"exitCode": code, "reason": "Error"}}
    status: dict[str, Any] = {
        "phase": "Failed",
        "conditions": [bodies.condition("Ready", False), bodies.condition("ContainersReady", False)],
        "containerStatuses": [bodies.container_status(ready=False, state=state)],
    }
    kube.change("pods", pod, {"status": {**status, **({"reason": reason} if reason else {})}}, namespace=namespace)


def recreate(kube: KubeServer, pod: str, *, namespace: str = "default") -> str:
    """Gone at once, and there again under its name, as controllers do it. Returns the new UID."""
    old = kube.get("pods", pod, namespace=namespace)
    kube.remove("pods", pod, namespace=namespace)
    kept = {"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"}
    metadata = {name: value for name, value in old["metadata"].items() if name not in kept}
    return str(kube.put("pods", {**old, "metadata": metadata})["metadata"]["uid"])


def _taints(kube: KubeServer, node: str) -> list[dict[str, str]]:
    return list(kube.get("nodes", node)["spec"].get("taints") or [])
