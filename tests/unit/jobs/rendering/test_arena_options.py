"""What arena's options mean is where each operator looks for it."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.rendering.objects import main_container, templates
from hvd_elastic_ext.jobs.rendering.render import needed, render
from hvd_elastic_ext.jobs.spec.job import KINDS
from tests.support.jobs import example, one, rendered
from tests.support.manifests import documents, of_operator, problems

LIMITS = {"timeout_s": 7200, "ttl_s": 60, "retries": 2}
FIELDS = {"activeDeadlineSeconds": 7200, "ttlSecondsAfterFinished": 60, "backoffLimit": 2}


@pytest.mark.parametrize("kind", ["mpijob", "mpijob-older", "pytorchjob"])
def test_limits_of_a_job_are_its_run_policy(kind: str) -> None:
    root = rendered(example(kind, **LIMITS, clean_pods="All")).root
    assert FIELDS.items() <= root["spec"]["runPolicy"].items()
    assert root["spec"]["runPolicy"]["cleanPodPolicy"] == "All"
    assert of_operator(root) == []


def test_limits_of_a_job_without_an_operator_are_those_of_its_job() -> None:
    root = rendered(example("statefulset", **LIMITS, clean_pods="None")).root
    assert FIELDS.items() <= root["spec"].items()
    assert problems(root) == []


def test_no_limit_of_zero_is_written() -> None:
    policy = rendered(example("mpijob")).root["spec"]["runPolicy"]
    assert policy == {"cleanPodPolicy": "Running"}


@pytest.mark.parametrize(
    ("kind", "others", "why"),
    [
        ("trainingjob", {"timeout_s": 5}, "--running-timeout: a TrainingJob has no such limit"),
        ("trainingjob", {"ttl_s": 5}, "--ttl-after-finished: a TrainingJob has no such limit"),
        ("statefulset", {"clean_pods": "All"}, "workers of a StatefulSet stay until the job is deleted"),
        ("pytorchjob", {"retries": 1, "backoff_limit": 2}, "--retry and --job-backoff-limit mean the same"),
    ],
)
def test_what_a_kind_does_not_have_is_refused(kind: str, others: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        rendered(example(kind, **others))


def test_a_retry_of_an_etjob_is_told_to_mean_nothing_as_in_arena() -> None:
    found = rendered(example("trainingjob", retries=2, clean_pods="None"))
    assert any("--retry: arena leaves it out of an etjob" in note for note in found.notes)
    assert found.root["spec"]["cleanPodPolicy"] == "None"
    assert of_operator(found.root) == []


@pytest.mark.parametrize("kind", KINDS)
def test_workers_have_devices_and_shared_memory_and_every_image_its_policy(kind: str) -> None:
    job = example(kind, shared_memory="8Gi", devices={"amd.com/gpu": "2"}, pull_policy="Always", discover_image="")
    pods = {role: each for body in rendered(job).objects for role, each in templates(body)}
    worker = pods["worker"]["spec"]
    (shared,) = (each for each in worker["volumes"] if each["name"] == "shm")
    assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in main_container(pods["worker"])["volumeMounts"]
    resources = main_container(pods["worker"])["resources"]
    assert resources["requests"]["amd.com/gpu"] == resources["limits"]["amd.com/gpu"] == "2"
    containers = [
        each
        for pod in pods.values()
        for field in ("initContainers", "containers")
        for each in pod["spec"].get(field, [])
    ]
    assert {each["imagePullPolicy"] for each in containers} == {"Always"}


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"shared_memory": "2GB"}, "--share-memory '2GB' is not a quantity"),
        ({"memory": "16K"}, "--memory '16K' is not a quantity"),
        ({"devices": {"amd.com/gpu": "two"}}, "--device amd.com/gpu 'two' is not a quantity"),
        ({"devices": {"amd.com/gpu": "0.5"}}, "--device amd.com/gpu=0.5: devices are whole"),
        ({"devices": {"gpu": "1"}}, "--device gpu=1: write VENDOR/NAME=N, such as amd.com/gpu=1"),
        ({"devices": {"a b/c": "1"}}, "--device a b/c=1: write VENDOR/NAME=N"),
        ({"devices": {"cpu": "3"}}, "--device cpu=3: write --cpu 3"),
        ({"devices": {"nvidia.com/gpu": "2"}, "gpus": 1}, "--device nvidia.com/gpu and --gpus mean the same; give one"),
        ({"retries": -1}, "--retry is -1; it must be at least 0"),
        ({"clean_pods": "Most"}, "--clean-task-policy 'Most' is not one of None, Running, All"),
    ],
)
def test_a_value_that_is_none_is_told(others: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        example("mpijob", **others)


def test_code_that_comes_along_is_unpacked_by_the_image_as_it_is_pulled() -> None:
    job = example("mpijob", pull_policy="Always", sync=".")
    made = render(job, {name: documents(f"{name}.yaml") for name in needed(job)}, archive=b"x")
    pods = [each for _, each in templates(one(made.objects, "MPIJob"))]
    assert {each["spec"]["initContainers"][0].get("imagePullPolicy") for each in pods} == {"Always"}
