"""The shorthands that tests use to make things happen in our server's cluster."""

from __future__ import annotations

import kubernetes_validate
import pytest
import yaml

from tests.contract.kube.conftest import Space
from tests.support.kube import acts, bodies
from tests.support.kube.server import KubeServer


@pytest.fixture
def cluster(fake: KubeServer) -> KubeServer:
    """Two nodes, with a pod on each."""
    for number in range(2):
        fake.put("nodes", bodies.node(f"n-{number}"))
        fake.put("pods", bodies.pod(f"w-{number}", node=f"n-{number}"))
    return fake


def ready(kube: KubeServer, kind: str, name: str) -> str:
    found = {each["type"]: each["status"] for each in kube.get(kind, name)["status"]["conditions"]}
    return str(found["Ready"])


def test_taints_come_and_go_one_by_one(cluster: KubeServer) -> None:
    acts.taint(cluster, "n-0", "example.org/spot")
    acts.taint(cluster, "n-0", "example.org/other", "v", "NoExecute")
    acts.taint(cluster, "n-0", "example.org/spot", "now")
    taints = {each["key"]: each for each in cluster.get("nodes", "n-0")["spec"]["taints"]}
    acts.untaint(cluster, "n-0", "example.org/spot")

    assert taints["example.org/spot"] == {"key": "example.org/spot", "value": "now", "effect": "NoSchedule"}
    assert taints["example.org/other"]["timeAdded"].endswith("Z")
    assert [each["key"] for each in cluster.get("nodes", "n-0")["spec"]["taints"]] == ["example.org/other"]


def test_a_lost_node_takes_its_own_pods_along_and_brings_them_back(cluster: KubeServer) -> None:
    acts.lose_node(cluster, "n-0")
    assert (ready(cluster, "nodes", "n-0"), ready(cluster, "nodes", "n-1")) == ("Unknown", "True")
    assert (ready(cluster, "pods", "w-0"), ready(cluster, "pods", "w-1")) == ("False", "True")

    acts.regain_node(cluster, "n-0")
    assert (ready(cluster, "nodes", "n-0"), ready(cluster, "pods", "w-0")) == ("True", "True")
    assert cluster.get("nodes", "n-0")["spec"]["taints"] == []


def test_a_failed_pod_stays_and_is_not_ready(cluster: KubeServer) -> None:
    acts.fail(cluster, "w-0", reason="Evicted")
    status = cluster.get("pods", "w-0")["status"]

    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    assert ready(cluster, "pods", "w-0") == "False"


def test_a_recreated_pod_is_another_of_the_same_name(cluster: KubeServer, inside: Space) -> None:
    old = cluster.get("pods", "w-0")["metadata"]["uid"]
    watch = inside.watch(resourceVersion=inside.version())
    new = acts.recreate(cluster, "w-0")
    seen = [watch.next() for _ in range(2)]

    assert [(kind, body["metadata"]["uid"]) for kind, body in seen] == [("DELETED", old), ("ADDED", new)]
    assert new != old


def test_a_cordoned_node_says_so_until_it_is_not(cluster: KubeServer) -> None:
    acts.cordon(cluster, "n-0")
    assert cluster.get("nodes", "n-0")["spec"]["unschedulable"] is True

    acts.cordon(cluster, "n-0", on=False)
    assert "unschedulable" not in cluster.get("nodes", "n-0")["spec"]


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


def test_a_manifest_of_an_unknown_kind_is_an_error(fake: KubeServer) -> None:
    with pytest.raises(KeyError):
        fake.apply([{"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "a"}}])


@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_bodies_are_what_clusters_have(fake: KubeServer, version: str) -> None:
    fake.put("nodes", bodies.node("n", taints=[bodies.taint("example.org/a", "b")], unschedulable=True))
    owner = ("MPIJob", "j", "u")
    fake.put("pods", bodies.pod("w", annotations={"a": "b"}, limits={"nvidia.com/gpu": "8"}, owner=owner))
    fake.put("pods", bodies.large_pod("large"))
    fake.put("pods", bodies.pod("failed"))
    acts.fail(fake, "failed", reason="Evicted")
    acts.lose_node(fake, "n")

    for body in (*fake.all("pods"), *fake.all("nodes")):
        kubernetes_validate.validate(body, version, strict=True)
