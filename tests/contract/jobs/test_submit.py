"""What ``submit`` makes: on our server, and with HVD_TEST_KUBECONFIG on a real one, too.

A real one may lack an operator; its kind of job is then left out.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.io.kube.errors import ApiError, Reason
from hvd_elastic_ext.jobs.cli import submit
from hvd_elastic_ext.jobs.cluster import making
from hvd_elastic_ext.jobs.cluster.api import Cluster
from hvd_elastic_ext.jobs.rendering.render import Rendered, secret
from hvd_elastic_ext.jobs.spec.job import KINDS
from tests.support.jobs import CODE, NOWHERE, everything, example, rendered

Body = dict[str, Any]


def whole(cluster: Cluster, kind: str, **others: Any) -> list[Body]:
    """A job's objects that this cluster can have. Pods are not to be started for this."""
    job = example(kind, selector=NOWHERE, launcher_selector=NOWHERE, **others)
    return of(cluster, rendered(job))


def of(cluster: Cluster, result: Rendered) -> list[Body]:
    """All objects, where the cluster has their kinds."""
    if cluster.read(f"/apis/{result.root['apiVersion']}") is None:
        pytest.skip(f"this cluster has no {result.root['kind']}")
    name = result.root["metadata"]["name"]
    key = [secret(result.key, name, key="aWQ=", public="aWQ=")] if result.key else []
    return [*key, *result.objects]


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_accepts_every_object_and_keeps_none_of_a_dry_run(cluster: Cluster, kind: str) -> None:
    objects = whole(cluster, kind)
    tried = making.try_out(cluster, objects)
    assert [each["metadata"]["name"] for each in tried] == [each["metadata"]["name"] for each in objects]
    assert [each["kind"] for each in objects if cluster.read(cluster.path_of(each)) is not None] == []


@pytest.mark.parametrize("kind", KINDS)
def test_all_objects_are_made_and_belong_to_the_job(cluster: Cluster, kind: str) -> None:
    objects = whole(cluster, kind)
    job = making.create(cluster, objects)
    for body in objects[:-1]:
        there = cluster.read(cluster.path_of(body))
        assert there is not None
        (owner,) = there["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == (objects[-1]["kind"], job["metadata"]["uid"])
        assert submit.difference(there, body) == []  # as it was asked for
    with pytest.raises(UsageError, match="already exists in namespace"):
        making.create(cluster, objects)
    assert cluster.delete(cluster.path_of(objects[-1]))
    assert not cluster.delete(cluster.path_of(objects[-1]))


@pytest.mark.parametrize("scheduler", ["kueue", "volcano"])
@pytest.mark.parametrize("code", CODE)
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_takes_a_job_with_every_option_as_it_is(
    cluster: Cluster, kind: str, code: str, scheduler: str
) -> None:
    if (kind, code) == ("pytorchjob", "sent"):
        with pytest.raises(UsageError, match="has no launcher that hands on more"):
            everything(kind, code, scheduler)
        return
    objects = of(cluster, everything(kind, code, scheduler))
    tried = making.try_out(cluster, objects)
    assert [submit.difference(there, body) for there, body in zip(tried, objects, strict=True)] == [[]] * len(objects)
    making.create(cluster, objects)
    there = [cluster.read(cluster.path_of(body)) for body in objects]
    assert [submit.difference(each, body) for each, body in zip(there, objects, strict=True)] == [[]] * len(objects)
    cluster.delete(cluster.path_of(objects[-1]))


def test_what_a_broken_attempt_left_is_made_anew_and_what_is_others_is_not_touched(cluster: Cluster) -> None:
    objects = whole(cluster, "statefulset")
    left = cluster.create(objects[1])
    making.create(cluster, objects)
    there = cluster.read(cluster.path_of(objects[1]))
    assert there is not None
    assert there["metadata"]["uid"] != left["metadata"]["uid"]
    others = whole(cluster, "statefulset", name="other")
    stranger = {**others[1], "metadata": {"name": others[1]["metadata"]["name"]}}
    cluster.create(stranger)
    with pytest.raises(UsageError, match="does not belong to this job"):
        making.create(cluster, others)
    assert cluster.read(cluster.path_of(others[0])) is None  # what was made before is taken back
    assert cluster.read(cluster.path_of(stranger)) is not None


def test_a_job_that_is_refused_leaves_nothing(cluster: Cluster) -> None:
    objects = whole(cluster, "statefulset")
    objects[-1] = {**objects[-1], "metadata": {**objects[-1]["metadata"], "namespace": "another"}}
    with pytest.raises(ApiError, match="the API server says 400"):
        making.create(cluster, objects)
    assert [each["kind"] for each in objects[:-1] if cluster.read(cluster.path_of(each)) is not None] == []


def test_a_job_whose_making_has_no_answer_is_taken_back_with_all_that_it_needs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = whole(cluster, "statefulset")
    create = cluster.create

    def unanswered(body: Body, **how: Any) -> Body:
        made = create(body, **how)
        if body["kind"] == "Job":
            raise ApiError(Reason.CUT, "no answer from the API server")
        return made

    monkeypatch.setattr(cluster, "create", unanswered)
    with pytest.raises(ApiError):
        making.create(cluster, objects)
    left = [cluster.read(cluster.path_of(each)) for each in objects]
    assert [each for each in left if each is not None and "deletionTimestamp" not in each["metadata"]] == []


def test_a_job_that_cannot_be_given_its_objects_is_taken_back_with_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = whole(cluster, "statefulset")

    def refused(*_: object) -> None:
        raise ApiError(Reason.FORBIDDEN, "patch of secrets is forbidden", status=403)

    monkeypatch.setattr(making, "give", refused)
    with pytest.raises(ApiError):
        making.create(cluster, objects)
    left = [cluster.read(cluster.path_of(each)) for each in objects]
    assert [each for each in left if each is not None and "deletionTimestamp" not in each["metadata"]] == []


def test_the_command_makes_the_job_and_shows_how_it_differs_later(
    cluster: Cluster, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "digits",
        "--kind",
        "statefulset",
        "--image",
        "example.org/none:1",
        "--selector",
        "hvd-elastic-ext/nowhere=yes",
    ]
    words += ["--launcher-selector", "hvd-elastic-ext/nowhere=yes", "--kubeconfig", str(config)]
    end = ["--", "python", "/t.py"]
    assert submit.main([*words, *end]) == 0
    assert "job.batch/digits created\n" in capsys.readouterr().out
    found = cluster.read(cluster.path("v1", "secrets", "digits-ssh"))
    assert found is not None
    assert base64.b64decode(found["data"]["id.pub"]).startswith(b"ssh-ed25519 ")
    assert submit.main([*words, "--diff", *end]) == 0
    assert submit.main([*words, "--diff", "--workers", "3", *end]) == 1
    assert "+  replicas: 3\n" in capsys.readouterr().out
    cluster.delete(cluster.path("batch/v1", "jobs", "digits"))


def test_a_folder_goes_along_and_belongs_to_the_job(cluster: Cluster, config: Path, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("x = 1\n")
    words = ["digits", "--kind", "statefulset", "--image", "example.org/none:1", "--sync", str(code)]
    words += ["--selector", "hvd-elastic-ext/nowhere=yes", "--launcher-selector", "hvd-elastic-ext/nowhere=yes"]
    assert submit.main([*words, "--kubeconfig", str(config), "--", "python", "train.py"]) == 0
    held = cluster.read(cluster.path("v1", "configmaps", "digits-code"))
    assert held is not None
    assert held["immutable"] is True
    assert held["metadata"]["ownerReferences"][0]["kind"] == "Job"
    cluster.delete(cluster.path("batch/v1", "jobs", "digits"))


def test_the_kind_is_what_the_cluster_has(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["api"] == "real":
        pytest.skip("which operators a real cluster has is not known here")
    assert making.kind_for(cluster, ["python", "t.py"]) == "mpijob"
    assert making.kind_for(cluster, ["torchrun", "t.py"]) == "pytorchjob"
