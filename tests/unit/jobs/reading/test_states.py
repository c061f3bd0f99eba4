"""What a cluster's objects say about a job, in one word and one line."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.jobs.reading import states
from hvd_elastic_ext.jobs.reading.states import FAILED, PENDING, RUNNING, SLEEPING, SUCCEEDED, SUSPENDED
from tests.support.jobs import example, rendered
from tests.support.kube import bodies


def root(kind: str, *conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {**rendered(example(kind)).root, "status": {"conditions": list(conditions), **status}}


CONDITION = bodies.condition


@pytest.mark.parametrize(
    ("kind", "conditions", "status", "expected"),
    [
        ("mpijob", [], {}, PENDING),
        ("mpijob", [CONDITION("Created")], {}, PENDING),
        ("mpijob", [CONDITION("Created"), CONDITION("Running")], {}, RUNNING),
        ("mpijob", [CONDITION("Running", False), CONDITION("Suspended")], {}, SUSPENDED),
        ("mpijob", [CONDITION("Running"), CONDITION("Failed")], {}, FAILED),
        ("pytorchjob", [CONDITION("Running", False), CONDITION("Succeeded")], {}, SUCCEEDED),
        ("pytorchjob", [CONDITION("Running", False), CONDITION("Restarting")], {}, RUNNING),
        ("statefulset", [], {"active": 1}, RUNNING),  # before Kubernetes 1.24
        ("statefulset", [], {"active": 1, "ready": 0}, PENDING),  # its pod waits, for an image maybe
        ("statefulset", [], {"active": 1, "ready": 1}, RUNNING),
        ("statefulset", [CONDITION("SuccessCriteriaMet"), CONDITION("Complete")], {}, SUCCEEDED),
        ("statefulset", [CONDITION("Suspended", False)], {"active": 1}, RUNNING),
        ("trainingjob", [], {"phase": "Scaling"}, RUNNING),
        ("trainingjob", [], {"phase": "WorkersCreated"}, PENDING),
        ("trainingjob", [], {"phase": "Failed"}, FAILED),
    ],
)
def test_a_job_is_in_the_state_that_its_operator_says(
    kind: str, conditions: list[Any], status: dict[str, Any], expected: str
) -> None:
    assert states.state_of(root(kind, *conditions, **status))[0] == expected


def test_numbers_are_the_specs_until_the_et_operator_has_scaled() -> None:
    assert states.asked_for(root("mpijob")) == 2
    assert states.asked_for(root("trainingjob")) == 2
    assert states.asked_for(root("trainingjob", targetWorkers=["a", "b", "c"])) == 3
    assert states.asked_for(root("statefulset")) is None
    assert states.asked_for(root("statefulset"), {"spec": {"replicas": 0}}) == 0


def test_only_ready_workers_of_this_job_count() -> None:
    mine = {"hvd-elastic-job": "digits"}
    pods = [
        bodies.pod("a", labels=mine),
        bodies.pod("b", labels=mine, ready=False),
        bodies.pod("launcher", labels={**mine, "hvd-elastic-role": "launcher"}),
        bodies.pod("c", labels={"hvd-elastic-job": "other"}),
    ]
    leaving = bodies.pod("d", labels=mine)
    leaving["metadata"]["deletionTimestamp"] = bodies.SINCE
    seen = states.seen(root("mpijob"), [*pods, leaving])
    assert (seen.ready, len(seen.pods)) == (1, 4)
    assert (seen.least, seen.most, seen.asked) == (1, 8, 2)


def test_a_job_says_why_its_launcher_does_not_run() -> None:
    mine = {"hvd-elastic-job": "digits"}
    launcher = bodies.pod("digits-x", labels={**mine, "hvd-elastic-role": "launcher"}, ready=False, phase="Pending")
    why = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    launcher["status"]["containerStatuses"] = [bodies.container_status(ready=False, state=why)]
    seen = states.seen(root("statefulset", active=1, ready=0), [bodies.pod("digits-worker-0", labels=mine), launcher])
    assert (seen.state, seen.message) == (PENDING, "digits-x: ImagePullBackOff: no such image")


@pytest.mark.parametrize(
    ("options", "ready", "expected"),
    [
        (("--below-min", "sleep"), 1, SLEEPING),
        (("--below-min=sleep",), 1, SLEEPING),
        (("--below-min=sleep",), 2, RUNNING),
        ((), 1, RUNNING),
    ],
)
def test_a_launcher_that_sleeps_without_its_workers_does_not_run(
    options: tuple[str, ...], ready: int, expected: str
) -> None:
    body = rendered(example("statefulset", min_workers=2, run_options=options)).root
    mine = {"hvd-elastic-job": "digits"}
    pods = [bodies.pod(f"digits-worker-{number}", labels=mine, ready=number < ready) for number in range(2)]
    seen = states.seen({**body, "status": {"active": 1, "ready": 1}}, pods, {"spec": {"replicas": 2}})
    assert seen.state == expected
    assert seen.message == ("1 of the 2 workers that it needs are ready" if expected == SLEEPING else "")


@pytest.mark.parametrize(
    ("state", "pods", "asked", "waits"),
    [
        (PENDING, ["worker", "worker"], 2, True),
        (RUNNING, ["launcher", "worker"], 2, True),
        (RUNNING, ["launcher", "worker", "worker"], 2, False),
        (SUSPENDED, [], 2, False),
        (SUCCEEDED, [], 2, False),
    ],
)
def test_a_job_waits_for_pods_that_are_not_made(state: str, pods: list[str], asked: int, waits: bool) -> None:
    there = tuple(states.PodStatus("p", role, "Running", True, "", "", "") for role in pods)
    job = states.JobStatus("digits", "Job", state, "", asked, 1, 8, "", "", there)
    assert job.waits_for_pods is waits


def waiting(**state: Any) -> dict[str, Any]:
    body = bodies.pod("a", ready=False)
    body["status"]["containerStatuses"] = [bodies.container_status(ready=False, state=state)]
    return body


def test_a_pod_says_what_it_waits_for_or_how_it_ended() -> None:
    unscheduled = bodies.pod("a", ready=False, phase="Pending")
    unscheduled["status"]["conditions"] = [CONDITION("PodScheduled", False) | {"message": "0/3 nodes are available"}]
    assert states.pod(unscheduled).why == "0/3 nodes are available"
    pulling = waiting(waiting={"reason": "ImagePullBackOff", "message": "no such\n image"})
    assert states.pod(pulling).why == "ImagePullBackOff: no such image"
    killed = waiting(terminated={"exitCode": 137, "reason": "OOMKilled"})
    assert states.pod(killed).why == "worker ended with 137 (OOMKilled)"
    assert states.pod(bodies.pod("a")).why == ""


def test_a_launcher_with_a_place_for_checkpoints_is_known() -> None:
    assert not states.stores_checkpoints(rendered(example("mpijob")).root)
    stored = rendered(example("mpijob", run_options=("--checkpoint-dir", "/ck"))).root
    assert states.stores_checkpoints(stored)
