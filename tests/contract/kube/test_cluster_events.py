"""The shorthands that tests use to make things happen in our server's cluster."""

from __future__ import annotations

import kubernetes_validate
import pytest
import yaml

from tests.contract.kube.conftest import Space
from tests.support.kube import bodies, cluster_events
from tests.support.kube.server import KubeServer


@pytest.fixture
def cluster(fake: KubeServer) -> KubeServer:
    """Two nodes, with a pod on each."""
    for number in range(2):
        fake.put("nodes", bodies.node(f"n-{number}"))
        fake.put("pods", bodies.pod(f"w-{number}", node=f"n-{number}"))
    return fake


MANIFESTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: discover}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: discover}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: discover}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: discover}
subjects:
- {kind: ServiceAccount, name: discover}
"""


def test_manifests_are_taken_as_they_are_and_what_they_allow_is_allowed(fake: KubeServer, inside: Space) -> None:
    fake.apply(yaml.safe_load_all(MANIFESTS))
    fake.apply(yaml.safe_load_all(MANIFESTS))  # as often as one likes
    discover = inside.api.as_user(fake.access.issue_for("default", "discover"))

    assert discover.ask("GET", inside.pods).code == 200
    assert discover.ask("GET", "/api/v1/nodes").code == 403
    assert fake.get("serviceaccounts", "discover")["metadata"]["namespace"] == "default"


@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_bodies_are_what_clusters_have(fake: KubeServer, version: str) -> None:
    fake.put("nodes", bodies.node("n", taints=[bodies.taint("example.org/a", "b")], unschedulable=True))
    owner = ("MPIJob", "j", "u")
    fake.put("pods", bodies.pod("w", annotations={"a": "b"}, limits={"nvidia.com/gpu": "8"}, owner=owner))
    fake.put("pods", bodies.large_pod("large"))
    fake.put("pods", bodies.pod("failed"))
    cluster_events.fail(fake, "failed", reason="Evicted")
    cluster_events.lose_node(fake, "n")

    for body in (*fake.all("pods"), *fake.all("nodes")):
        kubernetes_validate.validate(body, version, strict=True)
