"""Pods and nodes as the daemon keeps them, made of what an API server would send."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from discover.pods.views import ClusterSnapshot, Key, NodeView, PodView, node_view, pod_view
from tests.support.kube import bodies

NOW = 1_767_225_600.0
"""``bodies.SINCE`` in Unix seconds."""


def pod(name: str = "w-0", *, uid: str = "", version: int = 1, deletion: str = "", **more: Any) -> PodView:
    """``more``: see :func:`bodies.pod`; what is in ``status`` there is laid over its status."""
    status = more.pop("status", {})
    body = bodies.pod(name, **more)
    body["metadata"] |= {"uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    if deletion:
        body["metadata"]["deletionTimestamp"] = deletion
    body["status"] |= status
    return pod_view(body)


def node(
    name: str = "node-0", *, uid: str = "", version: int = 1, annotations: dict[str, str] | None = None, **more: Any
) -> NodeView:
    """``more``: see :func:`bodies.node`."""
    body = bodies.node(name, **more)
    body["metadata"] |= {"uid": uid or f"uid-{name}", "resourceVersion": str(version), "annotations": annotations or {}}
    return node_view(body)


def picture(pods: Iterable[PodView], nodes: Iterable[NodeView] | None = None) -> ClusterSnapshot:
    """All there is. Without ``nodes`` they may not be read."""
    return ClusterSnapshot(
        _in_order({each.key: each for each in pods}),
        None if nodes is None else {each.key.name: each for each in nodes},
    )


def changed(
    there: ClusterSnapshot, *objects: PodView | NodeView, gone: Iterable[PodView | NodeView] = ()
) -> ClusterSnapshot:
    """The same with other ``objects``, and without those that are ``gone``."""
    pods, nodes = dict(there.pods), dict(there.nodes or {})
    for each in objects:
        if isinstance(each, PodView):
            pods[each.key] = each
        else:
            nodes[each.key.name] = each
    for each in gone:
        if isinstance(each, PodView):
            pods.pop(each.key, None)
        else:
            nodes.pop(each.key.name, None)
    return ClusterSnapshot(_in_order(pods), None if there.nodes is None else nodes)


def _in_order(pods: Mapping[Key, PodView]) -> dict[Key, PodView]:
    return dict(sorted(pods.items(), key=lambda item: item[0]))
