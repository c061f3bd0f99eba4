"""Jobs are found, changed and deleted: on our server, and with HVD_TEST_KUBECONFIG on a real one, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs.cluster import changes, making
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.jobs.reading.states import FINISHED, GONE, PENDING, RUNNING
from tests.contract.jobs.test_submit import whole
from tests.contract.kube.client import MERGE
from tests.contract.kube.conftest import Space
from tests.support.kube import bodies

SCALED = ["mpijob", "statefulset", "pytorchjob"]
ALL = [*SCALED, "trainingjob"]


def made(cluster: Cluster, kind: str, name: str = "digits", **others: Any) -> dict[str, Any]:
    return making.create(cluster, whole(cluster, kind, name=name, **others))


def never(_: float) -> None:
    pytest.fail("nothing was to be waited for")


@pytest.mark.parametrize("kind", ALL)
def test_a_job_is_found_with_its_sizes_and_deleted_with_all_that_it_has(cluster: Cluster, kind: str) -> None:
    job = made(cluster, kind)
    found = changes.look(cluster, "digits")
    assert (found.name, found.kind, found.asked, found.least, found.most) == ("digits", job["kind"], 2, 1, 8)
    assert [each.name for each in changes.all_of(cluster)] == ["digits"]
    assert len(changes.delete(cluster, "digits")) == 1  # the rest belongs to it
    with pytest.raises(UsageError, match=r"there is no job digits in namespace .*nothing was submitted here"):
        changes.look(cluster, "digits")
    assert changes.delete(cluster, "digits") in ([], ["jobs/digits"])


@pytest.mark.parametrize("kind", ALL)
def test_a_job_may_be_submitted_again_as_soon_as_it_is_deleted(cluster: Cluster, kind: str) -> None:
    made(cluster, kind)
    changes.delete(cluster, "digits")
    made(cluster, kind)
    assert changes.look(cluster, "digits").asked == 2


def test_another_name_is_told_with_the_nearest(cluster: Cluster) -> None:
    made(cluster, "statefulset")
    with pytest.raises(UsageError, match=r"there is no job digit in namespace .*did you mean digits"):
        changes.look(cluster, "digit")


def test_what_a_broken_attempt_left_is_deleted_and_what_is_others_is_not(cluster: Cluster) -> None:
    objects = whole(cluster, "statefulset")
    cluster.create(objects[0])
    other = whole(cluster, "statefulset", name="other")
    cluster.create(other[0])
    assert changes.delete(cluster, "digits") == ["secrets/digits-ssh"]
    assert cluster.read(cluster.path_of(other[0])) is not None


@pytest.mark.parametrize("name", ["", ",", "digits,hvd-elastic-job", "../secrets/x", "Digits"])
def test_a_name_that_is_none_changes_nothing(cluster: Cluster, name: str) -> None:
    job = made(cluster, "mpijob")
    for act in (changes.delete, changes.look, changes.suspend, changes.resume):
        with pytest.raises(UsageError, match="is not the name of a job"):
            act(cluster, name)
    with pytest.raises(UsageError, match="is not the name of a job"):
        changes.wait_for(cluster, name, (GONE,), sleep=never)
    assert cluster.read(cluster.path_of({**job, "kind": "MPIJob", "apiVersion": "kubeflow.org/v2beta1"})) is not None


def test_a_job_of_others_with_the_same_name_is_neither_meant_nor_deleted(cluster: Cluster) -> None:
    objects = whole(cluster, "statefulset")
    theirs = {**objects[-1], "metadata": {"name": "digits"}}
    cluster.create(theirs)
    pytorch = made(cluster, "pytorchjob")
    mine = whole(cluster, "mpijob")[-1]
    cluster.create({**mine, "metadata": {"name": "digits"}})
    assert changes.root_of(cluster, "digits")["kind"] == pytorch["kind"]
    assert changes.delete(cluster, "digits") == ["pytorchjobs/digits"]
    assert [cluster.read(cluster.path_of(each)) is not None for each in (theirs, mine)] == [True, True]


@pytest.mark.parametrize("kind", SCALED)
def test_a_job_has_as_many_workers_as_it_is_told_within_its_limits(cluster: Cluster, kind: str) -> None:
    made(cluster, kind)
    changes.scale(cluster, "digits", 5)
    assert changes.look(cluster, "digits").asked == 5
    for wrong in (0, 9):
        with pytest.raises(UsageError, match="digits was submitted for 1 to 8 workers"):
            changes.scale(cluster, "digits", wrong)


def test_the_et_operator_is_asked_by_objects_as_arena_asks_it(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("an operator may act on them at once")
    made(cluster, "trainingjob")
    changes.scale(cluster, "digits", 5)
    changes.scale(cluster, "digits", 1)
    version = "kai.alibabacloud.com/v1alpha1"
    (more,), (less,) = cluster.listed(version, "scaleouts"), cluster.listed(version, "scaleins")
    assert more["spec"] == {"selector": {"name": "digits"}, "toAdd": {"count": 3}}
    assert less["spec"] == {"selector": {"name": "digits"}, "toDelete": {"count": 1}}


@pytest.mark.parametrize("kind", ["mpijob", "pytorchjob"])
def test_an_operators_job_is_suspended_and_resumed_as_a_whole(cluster: Cluster, kind: str) -> None:
    made(cluster, kind)
    for act, suspended in ((changes.suspend, True), (changes.resume, False)):
        act(cluster, "digits")
        assert changes.root_of(cluster, "digits")["spec"]["runPolicy"]["suspend"] is suspended


def test_workers_of_a_suspended_job_are_let_go_and_come_back(cluster: Cluster) -> None:
    made(cluster, "statefulset")
    changes.scale(cluster, "digits", 3)
    changes.suspend(cluster, "digits", sleep=lambda _: None)
    assert changes.look(cluster, "digits").asked == 0
    assert changes.root_of(cluster, "digits")["spec"]["suspend"] is True
    changes.resume(cluster, "digits")
    assert changes.look(cluster, "digits").asked == 3
    assert changes.root_of(cluster, "digits")["spec"]["suspend"] is False


def test_workers_stay_until_the_launcher_has_made_its_checkpoint(cluster: Cluster, space: Space) -> None:
    made(cluster, "statefulset")
    labels = {"hvd-elastic-job": "digits", "hvd-elastic-role": "launcher"}
    space.pod("stands-for-the-launcher", **labels)
    asked: list[int | None] = []

    def sleep(_: float) -> None:
        asked.append(changes.look(cluster, "digits").asked)
        space.delete("stands-for-the-launcher", grace=0)

    changes.suspend(cluster, "digits", sleep=sleep)
    assert asked[0] == 2
    assert changes.look(cluster, "digits").asked == 0


@pytest.mark.parametrize(
    ("kind", "others", "why"),
    [("trainingjob", {}, "cannot resume it"), ("mpijob", {"queue": "kueue/q"}, "suspended by Kueue")],
)
def test_what_cannot_be_suspended_is_told_why(cluster: Cluster, kind: str, others: dict[str, Any], why: str) -> None:
    made(cluster, kind, **others)
    with pytest.raises(UsageError, match=why):
        changes.suspend(cluster, "digits")


@pytest.mark.usefixtures("unattended")
def test_waiting_ends_with_the_job_and_says_what_it_waited_for(cluster: Cluster, space: Space) -> None:
    made(cluster, "mpijob")
    assert changes.wait_for(cluster, "digits", (PENDING,), sleep=never) == PENDING
    told, now = [], [0.0]  # type: ignore[var-annotated]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(changes.NotReached, match="still Pending after 20 s"):
        changes.wait_for(
            cluster, "digits", FINISHED, within_s=20, sleep=sleep, clock=lambda: now[0], report=told.append
        )
    assert told[0].startswith("waiting for digits: Pending")
    assert (len(told) > 2, now[0]) == (True, 20.0)
    with pytest.raises(changes.NotReached, match="digits: still Pending after 0 s"):
        changes.wait_for(cluster, "digits", FINISHED, within_s=0, sleep=never)

    def fail(_: float) -> None:
        ended = bodies.condition("Failed", reason="Broken") | {"message": "no luck"}
        path = space.path("mpijobs", "digits", "status", group="kubeflow.org/v2beta1")
        space.api.done("PATCH", path, {"status": {"conditions": [ended]}}, media=MERGE)

    with pytest.raises(changes.NotReached, match="digits: Failed: no luck"):
        changes.wait_for(cluster, "digits", (RUNNING,), sleep=fail)
    with pytest.raises(UsageError, match="digits has ended: Failed"):
        changes.suspend(cluster, "digits")
    assert changes.wait_for(cluster, "nobody", (GONE,), sleep=never) == GONE
    with pytest.raises(changes.NoSuchJob, match="there is no job nobody"):
        changes.wait_for(cluster, "nobody", (RUNNING,), sleep=never)


@pytest.mark.usefixtures("unattended")
def test_workers_of_a_statefulset_outlive_their_job_and_are_let_go_when_somebody_says_so(
    cluster: Cluster, space: Space, config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made(cluster, "statefulset")
    where = ["-n", cluster.namespace, "--kubeconfig", str(config)]
    assert cli.main(["get", "digits", *where]) == 0
    assert capfd.readouterr().err == ""
    with pytest.raises(UsageError, match="digits was submitted for 1 to 8 workers"):
        changes.scale(cluster, "digits", 0)
    now = "2026-01-01T00:00:00Z"
    ended = [
        bodies.condition("FailureTarget", reason="BackoffLimitExceeded"),
        bodies.condition("Failed", reason="Broken"),
    ]
    path = space.path("jobs", "digits", "status", group="batch/v1")
    space.api.done("PATCH", path, {"status": {"startTime": now, "conditions": ended}}, media=MERGE)
    told = f"digits has ended, and its 2 workers keep what they hold; hvd-elastic scale digits 0 -n {cluster.namespace}"
    for words in (["get", "digits"], ["wait", "digits", "--for", "finished"]):
        assert cli.main([*words, *where]) == 0
        assert told in capfd.readouterr().err
    assert cli.main(["scale", "digits", "0", *where]) == 0
    assert changes.look(cluster, "digits").asked == 0
    assert cli.main(["wait", "digits", "--for", "failed", *where]) == 0
    assert told not in capfd.readouterr().err


def test_the_number_of_kueues_group_of_workers_does_not_change(cluster: Cluster) -> None:
    made(cluster, "statefulset", queue="kueue/q")
    with pytest.raises(UsageError, match="digits: Kueue admits workers of a StatefulSet as one group"):
        changes.scale(cluster, "digits", 3)
    changes.scale(cluster, "digits", 2)
    assert changes.look(cluster, "digits").asked == 2
