"""What a cluster's objects say about a job, in one word and one line."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.jobs.reading import states
from hvd_elastic_ext.jobs.reading.states import FAILED, PENDING, RUNNING, SUCCEEDED, SUSPENDED
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
        ("statefulset", [], {"active": 1}, RUNNING),
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
