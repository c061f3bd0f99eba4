"""Deletion: grace, force, preconditions, eviction."""

from __future__ import annotations

import datetime

from tests.contract.kube.conftest import Space, pod


def _at(text: str) -> float:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def test_a_pod_on_a_node_gets_a_time_by_which_to_be_gone(space: Space) -> None:
    space.pod("a")
    now = _at(space.pod("b").body["metadata"]["creationTimestamp"])
    reply = space.delete("a", grace=25)
    metadata = reply.body["metadata"]

    assert (reply.code, reply.body["kind"]) == (200, "Pod")
    assert metadata["deletionGracePeriodSeconds"] == 25
    assert now + 25 <= _at(metadata["deletionTimestamp"]) <= now + 85
    assert space.api.done("GET", space.path("pods", "a")).body["metadata"]["deletionTimestamp"]


def test_the_grace_is_the_pods_own_unless_said_otherwise(space: Space) -> None:
    body = pod("a", node=space.node())
    body["spec"]["terminationGracePeriodSeconds"] = 77
    space.api.done("POST", space.pods, body)

    assert space.delete("a").body["metadata"]["deletionGracePeriodSeconds"] == 77


def test_a_second_deletion_shortens_the_grace_and_never_lengthens_it(space: Space) -> None:
    space.pod("a")
    first = space.delete("a", grace=60).body["metadata"]
    longer = space.delete("a", grace=600).body["metadata"]
    again = space.delete("a").body["metadata"]
    shorter = space.delete("a", grace=30).body["metadata"]

    assert longer["deletionTimestamp"] == again["deletionTimestamp"] == first["deletionTimestamp"]
    assert shorter["deletionGracePeriodSeconds"] == 30
    assert _at(shorter["deletionTimestamp"]) < _at(first["deletionTimestamp"])


def test_no_grace_is_at_once(space: Space) -> None:
    space.pod("a")
    space.delete("a", grace=0)

    assert space.api.ask("GET", space.path("pods", "a")).code == 404


def test_a_pod_that_nobody_runs_goes_at_once(space: Space) -> None:
    space.api.done("POST", space.pods, pod("unscheduled"))
    space.pod("failed")
    space.status("failed", phase="Failed", reason="Evicted")
    space.delete("unscheduled", grace=60)
    space.delete("failed", grace=60)

    assert space.api.done("GET", space.pods).names == []


def test_a_deletion_of_another_uid_is_a_conflict(space: Space) -> None:
    space.pod("a")
    options = {"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}
    reply = space.api.ask("DELETE", space.path("pods", "a"), {"kind": "DeleteOptions", "apiVersion": "v1", **options})

    assert (reply.code, reply.body["reason"]) == (409, "Conflict")
    assert "The object might have been deleted and then recreated" in reply.body["message"]
    assert space.api.done("GET", space.pods).names == ["a"]


def _eviction(name: str) -> dict[str, object]:
    options = {"gracePeriodSeconds": 20}
    return {"kind": "Eviction", "apiVersion": "policy/v1", "metadata": {"name": name}, "deleteOptions": options}


def test_an_eviction_says_why_and_deletes_with_grace(space: Space) -> None:
    space.pod("a")
    space.status("a", phase="Running")
    reply = space.api.done("POST", space.path("pods", "a", "eviction"), _eviction("a"))
    body = space.api.done("GET", space.path("pods", "a")).body
    conditions = {each["type"]: each for each in body["status"]["conditions"]}

    assert (reply.code, reply.body["status"]) == (201, "Success")
    assert body["metadata"]["deletionGracePeriodSeconds"] == 20
    assert conditions["DisruptionTarget"]["status"] == "True"
    assert conditions["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"
