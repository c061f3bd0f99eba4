"""Requests to a cluster about a job's workers, and the meaning of its answers."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.launcher.sleep import replica_requests
from hvd_elastic_ext.launcher.sleep.replica_requests import (
    BEFORE,
    COST,
    DELETION_COST,
    Pod,
    Seen,
    scale_patch,
    selector_of,
    workload,
)
from tests.support.kube import bodies

MPI, SET = workload("mpijob/digits"), workload("statefulset/digits-worker")
NOBODY: dict[str, Any] = {"items": []}


def job(replicas: object, **annotations: str) -> dict[str, Any]:
    body = bodies.mpi_job("digits", slots=4)
    body["metadata"] |= {"uid": "u-1", "annotations": annotations}
    worker = body["spec"]["mpiReplicaSpecs"]["Worker"]
    worker["replicas"] = replicas
    if replicas is None:
        del worker["replicas"]
    return body


def pods(*each: dict[str, Any]) -> dict[str, Any]:
    return {"items": list(each)}


def pod(name: str, *, owner: str = "u-1", ready: bool = True, **metadata: Any) -> dict[str, Any]:
    body = bodies.pod(name, ready=ready, owner=("MPIJob", "digits", owner))
    body["metadata"] |= {"uid": f"of-{name}", **metadata}
    return body


def test_a_workload_is_named_by_its_kind_and_name() -> None:
    assert str(MPI) == "mpijob/digits"
    assert (MPI.kind.api_version, MPI.kind.plural, MPI.kind.scale) == ("kubeflow.org/v2beta1", "mpijobs", False)
    assert (SET.kind.api_version, SET.kind.plural, SET.kind.scale) == ("apps/v1", "statefulsets", True)


def test_any_kind_with_a_scale_is_named_by_plural_version_and_group() -> None:
    text = "leaderworkersets.v1.leaderworkerset.x-k8s.io/digits"
    found = workload(text)
    assert str(found) == text
    assert (found.kind.api_version, found.kind.plural) == ("leaderworkerset.x-k8s.io/v1", "leaderworkersets")
    assert scale_patch(found, 2, None) == {"spec": {"replicas": 2}}
    scale = {"spec": {"replicas": 3}, "status": {"replicas": 3, "selector": "app=w"}}
    assert replica_requests.seen(found, scale, pods(pod("w-0"))).replicas == 3
    assert selector_of(found, scale) == "app=w"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("digits", "write KIND/NAME, such as mpijob/digits"),
        ("mpijob/", "does not name an object"),
        ("mpijob/../secrets", "does not name an object"),
        ("mpijob/Digits", "does not name an object"),
        ("mpijobs/digits", "did you mean 'mpijob'.*PLURAL.VERSION.GROUP"),
        ("things.v1.a/../b/digits", "does not name an object"),
        ("things.v1./digits", "did you mean"),
        ("trainingjob/digits", "the et-operator does not look at the number of workers"),
    ],
)
def test_what_names_no_workload_is_told_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        workload(text)
    assert "\n" not in str(error.value)


def test_an_object_says_how_many_workers_it_is_to_have_and_which_are_there() -> None:
    there = pods(
        pod("w-0"), pod("w-1", ready=False), pod("w-2", deletionTimestamp="2026-11-22T10:00:00Z"), pod("x", owner="u-2")
    )
    found = replica_requests.seen(MPI, job(3, **{BEFORE: "8"}), there)
    assert (found.replicas, found.before, found.slots, found.ready) == (3, 8, 4, 1)
    assert [each.name for each in found.pods] == ["w-0", "w-1", "w-2"]
    assert found.pods[2] == Pod("w-2", "of-w-2", ready=True, leaving=True, ip="10.0.0.1")


def test_what_is_left_out_is_what_it_is_by_default() -> None:
    assert replica_requests.seen(MPI, job(None), NOBODY).replicas == 0
    assert replica_requests.seen(SET, {"spec": {}, "status": {"replicas": 0}}, NOBODY).replicas == 0


@pytest.mark.parametrize("before", ["", "0", "-1", "eight", "8 ", "²", "99999999"])
def test_a_note_that_is_none_is_not_there(before: str) -> None:
    assert replica_requests.seen(MPI, job(3, **{BEFORE: before}), NOBODY).before is None


@pytest.mark.parametrize(
    ("number", "there"),
    [
        ({}, NOBODY),
        (job("3"), NOBODY),
        (job(True), NOBODY),
        (job(3), {}),
        (job(3), pods({"metadata": {"ownerReferences": [{"controller": True, "uid": "u-1"}]}})),
    ],
)
def test_an_answer_that_is_none_is_told(number: dict[str, Any], there: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="invalid"):
        replica_requests.seen(MPI, number, there)


def test_whose_pods_they_are_goes_by_labels_that_a_scale_may_say_itself() -> None:
    assert selector_of(MPI, {}).startswith("training.kubeflow.org/job-name=digits,")
    assert selector_of(SET, {"status": {"selector": "app=digits"}}) == "app=digits"
    with pytest.raises(ValueError, match="does not say which pods"):
        selector_of(SET, {"status": {}})


def test_a_training_job_is_scaled_by_objects_and_so_cannot_sleep() -> None:
    assert str(workload("trainingjob/digits", option="--scale-with")) == "trainingjob/digits"


def of_deployment(*pods_there: dict[str, Any]) -> Seen:
    return replica_requests.seen(workload("deployment/w"), {"spec": {"replicas": 3}}, pods(*pods_there))


def test_hosts_that_go_are_marked_and_marks_of_others_are_taken_back() -> None:
    last = pod("w-z", deletionTimestamp="2026-11-22T10:00:00Z")
    addressed = pod("w-d")
    addressed["status"]["podIP"] = "10.0.0.4"
    marked, theirs = pod("w-b", annotations={COST: DELETION_COST}), pod("w-c", annotations={COST: "7"})
    now = of_deployment(pod("w-a"), marked, theirs, addressed, last)
    of = workload("deployment/w")
    assert replica_requests.marks(of, now, ["w-a.w.ns.svc", "10.0.0.4"]) == [
        ("w-a", DELETION_COST),
        ("w-b", None),
        ("w-d", DELETION_COST),
    ]
    assert replica_requests.marks(of, now, ["w-b", "w-z"]) == [], "it has its mark, and the other one goes already"
    assert replica_requests.marks(of, now, []) == [("w-b", None)]
    assert replica_requests.mark_patch(None) == {"metadata": {"annotations": {COST: None}}}
    with pytest.raises(ValueError, match="host h1 is not a pod of deployment/w"):
        replica_requests.marks(of, now, ["w-a", "h1"])


def test_a_change_of_a_training_job_names_the_workers_that_go() -> None:
    of, before = workload("trainingjob/j", option="--scale-with"), ["j-worker-0", "j-worker-1", "j-worker-3"]
    assert replica_requests.request(of, before, 3, ["j-worker-1"]) is None
    assert replica_requests.request(of, before, 5, []) == (
        "scaleouts",
        {
            "apiVersion": "kai.alibabacloud.com/v1alpha1",
            "kind": "ScaleOut",
            "metadata": {"generateName": "j-scaleout-"},
            "spec": {"selector": {"name": "j"}, "toAdd": {"count": 2}, "timeout": 300},
        },
    )
    plural, body = replica_requests.request(of, before, 1, ["j-worker-1.j.ns.svc", "another"]) or ("", {})
    assert (plural, body["spec"]["toDelete"]) == ("scaleins", {"count": 1, "podNames": ["j-worker-1"]})
    with pytest.raises(ValueError, match="2 workers more than are wanted, and none of them is a host"):
        replica_requests.request(of, before, 1, ["another"])


def test_a_number_and_what_it_was_before_are_told_in_one_stroke() -> None:
    assert scale_patch(MPI, 0, 8) == {
        "spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 0}}},
        "metadata": {"annotations": {BEFORE: "8"}},
    }
    assert scale_patch(MPI, 8, None)["metadata"] == {"annotations": {BEFORE: None}}
    assert scale_patch(SET, 0, 8) == {"spec": {"replicas": 0}}


def test_a_job_is_suspended_with_a_number_that_its_operator_takes() -> None:
    patch = replica_requests.suspended(MPI, 8)
    assert patch["spec"] == {"mpiReplicaSpecs": {"Worker": {"replicas": 8}}, "runPolicy": {"suspend": True}}


def test_workers_are_deleted_only_where_the_operator_would_leave_them() -> None:
    there = (Pod("w-0", "a", True, False), Pod("w-1", "b", True, True))
    assert replica_requests.to_delete(MPI, Seen(0, there)) == there[:1]
    assert replica_requests.to_delete(MPI, Seen(1, there)) == ()
    assert replica_requests.to_delete(SET, Seen(0, there)) == ()
