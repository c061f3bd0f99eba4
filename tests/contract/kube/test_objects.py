"""Creating, reading and changing."""

from __future__ import annotations

import pytest

from tests.contract.kube.client import MERGE, STRATEGIC
from tests.contract.kube.conftest import Space, pod


def test_a_created_object_has_a_uid_a_version_and_the_time(space: Space) -> None:
    reply = space.pod("a")

    metadata = reply.body["metadata"]
    assert reply.code == 201
    assert (reply.body["kind"], reply.body["apiVersion"]) == ("Pod", "v1")
    assert len(metadata["uid"]) == 36
    assert metadata["resourceVersion"].isdigit()
    assert not metadata["resourceVersion"].startswith("0")
    assert metadata["creationTimestamp"].endswith("Z")


def test_versions_grow_with_every_write_and_are_decimal(space: Space) -> None:
    versions = [int(space.pod("a").version)]
    versions += [int(space.label("a", turn=str(number)).version) for number in range(3)]
    versions.append(int(space.version()))

    assert versions[:4] == sorted(set(versions[:4]))
    assert versions[4] >= versions[3]


def test_a_change_that_changes_nothing_is_no_write(space: Space) -> None:
    space.pod("a", x="1")

    assert space.label("a", x="1").version == space.label("a", x="1").version


def test_a_name_is_taken_once(space: Space) -> None:
    space.pod("a")
    reply = space.api.ask("POST", space.pods, pod("a"))

    assert reply.code == 409
    assert (reply.body["kind"], reply.body["status"], reply.body["reason"]) == ("Status", "Failure", "AlreadyExists")
    assert reply.body["message"] == 'pods "a" already exists'
    assert reply.body["details"] == {"name": "a", "kind": "pods"}


def test_what_is_not_there_is_not_found(space: Space) -> None:
    reply = space.api.ask("GET", space.path("pods", "a"))

    assert reply.code == 404
    assert reply.body["reason"] == "NotFound"
    assert reply.body["message"] == 'pods "a" not found'
    assert reply.body["details"] == {"name": "a", "kind": "pods"}
    assert reply.body["metadata"] == {}


def test_a_key_of_a_configmap_is_a_name_of_a_file(space: Space) -> None:
    path = space.path("configmaps")
    refused = space.api.ask("POST", path, {"metadata": {"name": "a"}, "data": {"y/z": "1"}})
    assert (refused.code, refused.body["reason"]) == (422, "Invalid")
    assert refused.body["message"].startswith('ConfigMap "a" is invalid: data[y/z]: Invalid value: "y/z"')
    space.api.done("POST", path, {"metadata": {"name": "a"}})
    patch = {"data": {"y/z": "1"}}
    assert space.api.ask("PATCH", space.path("configmaps", "a"), patch, media=MERGE).code == 422


def test_a_variable_without_a_value_loses_the_empty_one(space: Space) -> None:
    body = pod("a", node=space.node())
    body["spec"]["containers"][0]["env"] = [{"name": "EMPTY", "value": ""}, {"name": "FULL", "value": "1"}]
    space.api.done("POST", space.pods, body)
    found = space.api.done("GET", space.path("pods", "a")).body["spec"]["containers"][0]["env"]
    assert found == [{"name": "EMPTY"}, {"name": "FULL", "value": "1"}]


def test_an_update_of_an_outdated_version_is_a_conflict(space: Space) -> None:
    path = space.path("configmaps", "a")
    old = space.api.done("POST", space.path("configmaps"), {"metadata": {"name": "a"}, "data": {"x": "1"}}).body
    space.api.done("PUT", path, old | {"data": {"x": "2"}})
    reply = space.api.ask("PUT", path, old | {"data": {"x": "3"}})

    assert (reply.code, reply.body["reason"]) == (409, "Conflict")
    assert reply.body["message"].startswith(
        'Operation cannot be fulfilled on configmaps "a": the object has been modified'
    )
    assert space.api.done("GET", path).body["data"] == {"x": "2"}


def test_an_update_without_a_version_wins(space: Space) -> None:
    space.api.done("POST", space.path("configmaps"), {"metadata": {"name": "a"}, "data": {"x": "1"}})
    body = {"metadata": {"name": "a"}, "data": {"y": "2"}}

    assert space.api.done("PUT", space.path("configmaps", "a"), body).body["data"] == {"y": "2"}


def test_a_merge_patch_merges_maps_replaces_lists_and_removes_nulls(space: Space) -> None:
    space.pod("a", x="1", y="2")
    space.status("a", conditions=[{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}])
    space.label("a", x=None, z="3")
    path = space.path("pods", "a", "status")
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    body = space.api.done("PATCH", path, patch, media=MERGE).body

    assert body["metadata"]["labels"] == {"y": "2", "z": "3"}
    assert [(each["type"], each["status"]) for each in body["status"]["conditions"]] == [("Ready", "False")]


def test_a_strategic_patch_merges_conditions_by_type(space: Space) -> None:
    space.pod("a")
    space.status("a", conditions=[{"type": "Ready", "status": "True"}, {"type": "Other", "status": "True"}])
    body = space.status("a", conditions=[{"type": "Ready", "status": "False", "reason": "Gone"}]).body

    found = {each["type"]: (each["status"], each.get("reason")) for each in body["status"]["conditions"]}
    assert found == {"Ready": ("False", "Gone"), "Other": ("True", None)}


def test_a_strategic_patch_replaces_taints(space: Space) -> None:
    path = f"/api/v1/nodes/{space.node()}"
    taints = [{"key": "example.org/a", "effect": "NoSchedule"}, {"key": "example.org/b", "effect": "NoSchedule"}]
    space.api.done("PATCH", path, {"spec": {"taints": taints}}, media=STRATEGIC)
    body = space.api.done("PATCH", path, {"spec": {"taints": taints[1:]}}, media=STRATEGIC).body

    keys = {each["key"] for each in body["spec"]["taints"]}
    assert "example.org/b" in keys
    assert "example.org/a" not in keys


OTHER = "00000000-0000-0000-0000-000000000000"


def test_a_patch_that_names_another_uid_is_invalid(space: Space) -> None:
    space.pod("a")
    patch = {"metadata": {"uid": OTHER, "labels": {"x": "1"}}}
    reply = space.api.ask("PATCH", space.path("pods", "a"), patch, media=MERGE)

    assert (reply.code, reply.body["reason"]) == (422, "Invalid")
    assert reply.body["message"] == f'Pod "a" is invalid: metadata.uid: Invalid value: "{OTHER}": field is immutable'


def test_the_status_is_changed_through_its_subresource_only(space: Space) -> None:
    space.pod("a")
    space.api.done("PATCH", space.path("pods", "a"), {"status": {"phase": "Running"}}, media=MERGE)
    assert space.api.done("GET", space.path("pods", "a")).body["status"]["phase"] == "Pending"

    space.status("a", phase="Running")
    assert space.api.done("GET", space.path("pods", "a")).body["status"]["phase"] == "Running"


def test_the_scale_of_a_statefulset_is_its_replicas(space: Space) -> None:
    labels = {"job": "j"}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    spec = {"replicas": 2, "serviceName": "j", "selector": {"matchLabels": labels}, "template": template}
    group = "apps/v1"
    space.api.done("POST", space.path("statefulsets", group=group), {"metadata": {"name": "j"}, "spec": spec})
    path = space.path("statefulsets", "j", "scale", group=group)
    shown = space.api.done("GET", path).body
    scaled = space.api.done("PATCH", path, {"spec": {"replicas": 5}}, media=MERGE).body
    after = space.api.done("GET", space.path("statefulsets", "j", group=group)).body

    assert (shown["kind"], shown["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (shown["spec"]["replicas"], shown["status"]["selector"]) == (2, "job=j")
    assert scaled["spec"]["replicas"] == after["spec"]["replicas"] == 5
    assert after["metadata"]["generation"] == 2


def test_an_mpi_job_has_a_status_and_no_scale(space: Space) -> None:
    group = "kubeflow.org/v2beta1"
    if space.api.ask("GET", f"/apis/{group}").code != 200:
        pytest.skip("needs a cluster with the MPI Operator's CRD; install it there")
    replicas = {kind: {"replicas": 1, "template": {"spec": pod("x")["spec"]}} for kind in ("Launcher", "Worker")}
    body = {"kind": "MPIJob", "apiVersion": group, "metadata": {"name": "j"}, "spec": {"mpiReplicaSpecs": replicas}}
    space.api.done("POST", space.path("mpijobs", group=group), body)
    patch = {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 3}}}}
    patched = space.api.done("PATCH", space.path("mpijobs", "j", group=group), patch, media=MERGE).body
    scale = space.api.ask("GET", space.path("mpijobs", "j", "scale", group=group))
    strategic = space.api.ask("PATCH", space.path("mpijobs", "j", group=group), patch, media=STRATEGIC)

    assert patched["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 3
    assert patched["metadata"]["generation"] == 2
    assert scale.code == 404
    assert strategic.code == 415


def test_maps_that_are_empty_are_not_kept_and_other_empty_things_are(space: Space) -> None:
    metadata = {"name": "a", "labels": {}, "annotations": {}}
    body = {**pod("a"), "metadata": metadata}
    body["spec"] = {**body["spec"], "nodeSelector": {}, "volumes": [{"name": "v", "emptyDir": {}}]}
    made = space.api.done("POST", space.pods, body).body
    read = space.api.done("GET", f"{space.pods}/a").body

    for each in (made, read):
        assert {"labels", "annotations"}.isdisjoint(each["metadata"])
        assert "nodeSelector" not in each["spec"]
        assert each["spec"]["volumes"][0]["emptyDir"] == {}


def test_a_pod_with_gates_says_that_it_is_not_scheduled_before_they_are_gone(space: Space) -> None:
    body = pod("a")
    body["spec"]["schedulingGates"] = [{"name": "example.org/later"}]
    made = space.api.done("POST", space.pods, body).body
    (scheduled,) = (each for each in made["status"]["conditions"] if each["type"] == "PodScheduled")
    patch = {"spec": {"schedulingGates": []}}
    after = space.api.done("PATCH", f"{space.pods}/a", patch, media=MERGE).body

    assert (scheduled["status"], scheduled["reason"]) == ("False", "SchedulingGated")
    assert scheduled["message"] == "Scheduling is blocked due to non-empty scheduling gates"
    assert not after["spec"].get("schedulingGates")
