"""``hvd-elastic preflight``, on our server and, with HVD_TEST_KUBECONFIG, on a real one."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.jobs.cluster import preflight
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.contract.kube.conftest import Space
from tests.support.jobs import example
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer

__all__ = ["kube"]


def levels(cluster: Cluster, **others: object) -> dict[str, str]:
    return {each.what: each.level for each in preflight.look(cluster, example("statefulset", **others))}


def test_an_administrator_may_submit_and_nothing_is_made(cluster: Cluster, space: Space) -> None:
    found = levels(cluster)
    assert (found["server"], found["kind"], found["objects"], found["quota"]) == ("ok", "ok", "ok", "ok")
    assert "rights" not in found
    assert cluster.listed("apps/v1", "statefulsets") == []
    assert cluster.listed("v1", "secrets", "hvd-elastic-job=digits") == []


def test_a_name_that_is_taken_and_a_claim_that_is_missing_are_problems(cluster: Cluster, space: Space) -> None:
    labels = {"metadata": {"name": "digits-worker"}, "spec": {"clusterIP": "None"}}
    space.api.done("POST", space.path("services"), labels)
    found = levels(cluster, volumes={"/data": "nobodys"})
    assert (found["Service"], found["claim"], found["objects"]) == ("problem", "problem", "ok")


def test_the_command_tells_problems_by_its_exit_code(config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["preflight", "--kind", "statefulset", "--kubeconfig", str(config)]
    assert cli.main([*words, "--data", "nobodys:/data"]) == 1
    said = capfd.readouterr().out
    assert "PROBLEM  claim    there is no nobodys\n" in said
    assert "-> make the PersistentVolumeClaim first" in said
    assert "example.com" not in said  # none was named
    assert "not checked; give --image" in said


# --- what a real server cannot be made to do


def test_whoever_may_do_nothing_is_told_so_with_each_object(kube: KubeServer, tmp_path: Path) -> None:
    kube.put("serviceaccounts", {"metadata": {"name": "guest"}})
    token = kube.access.issue_for("default", "guest")
    guest = Cluster(Access(str(kube.kubeconfig(tmp_path / "config", token=token))))
    found = list(preflight.look(guest, example("mpijob")))
    refused = {each.what for each in found if each.level == "problem"}
    assert refused == {"ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "MPIJob"}
    assert all("403 Forbidden" in each.found for each in found if each.level == "problem")
    assert len([each for each in found if each.what == "rights" and each.level == "warning"]) == 6
    assert {each.what: each.level for each in found if each.level == "unknown"}.keys() == {"nodes", "quota", "images"}


def found(cluster: Cluster, what: str, **others: object) -> list[tuple[str, str, str]]:
    every = preflight.look(cluster, example("mpijob", **others))
    return [(each.level, each.found, each.remedy) for each in every if each.what == what]


@pytest.fixture
def mine(kube: KubeServer, tmp_path: Path) -> Cluster:
    return Cluster(Access(str(kube.kubeconfig(tmp_path / "config"))))


def test_an_image_that_another_pod_waits_for_is_a_problem_and_one_that_runs_is_none(
    kube: KubeServer, mine: Cluster
) -> None:
    ((level, said, _),) = found(mine, "images", image=bodies.IMAGE, discover_image="")
    assert (level, said) == (
        "unknown",
        f"whether {bodies.IMAGE} can be pulled shows when a pod starts: hvd-elastic get",
    )
    kube.put("pods", bodies.pod("runs"))
    assert found(mine, "images", image=bodies.IMAGE, discover_image="") == [
        ("ok", f"{bodies.IMAGE} runs in pod runs", "")
    ]
    waits = bodies.pod("waits", ready=False, phase="Pending")
    why = {"waiting": {"reason": "ImagePullBackOff", "message": "no such manifest"}}
    waits["status"]["containerStatuses"] = [bodies.container_status(ready=False, state=why)]
    kube.put("pods", waits)
    ((level, said, remedy),) = found(mine, "images", image=bodies.IMAGE, discover_image="")
    assert (level, said) == ("problem", f"{bodies.IMAGE}: pod waits waits: ImagePullBackOff: no such manifest")
    assert "--image-pull-secret" in remedy


def test_a_pull_secret_is_there_and_opens_the_images_registry(kube: KubeServer, mine: Cluster) -> None:
    ask = {"image": "reg.example.com/train:1", "discover_image": "", "pull_secrets": ("mine",)}
    (missing, _) = found(mine, "images", **ask)
    assert missing[:2] == ("problem", "there is no pull secret mine")
    config = base64.b64encode(json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": "c2VjcmV0"}}}).encode())
    kube.put(
        "secrets",
        {
            "metadata": {"name": "mine"},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": config.decode()},
        },
    )
    (other, _) = found(mine, "images", **ask)
    assert other[:2] == ("warning", "no pull secret has credentials for reg.example.com")
    assert [each[0] for each in found(mine, "images", **{**ask, "image": "someone/train:1"})] == ["unknown"]
    kube.put("secrets", {"metadata": {"name": "mine"}, "type": "Opaque"})
    assert found(mine, "images", **ask)[0][:2] == (
        "problem",
        "secret mine is of type Opaque, with which pods cannot pull",
    )


def test_a_claim_is_compared_with_the_storage_class_that_it_gets(kube: KubeServer, mine: Cluster) -> None:
    volumes = {"volumes": {"/ck": "ckpt"}}
    claim = {"metadata": {"name": "ckpt"}, "spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Pending"}}
    kube.put("persistentvolumeclaims", claim)
    ((level, said, _),) = found(mine, "claim", **volumes)
    assert (level, said) == ("problem", "ckpt names no storage class, and the cluster has no default one")
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    disks = {"metadata": {"name": "disks", "annotations": default}, "provisioner": "ebs.csi.aws.com"}
    kube.put("storageclasses", disks)
    kube.put("storageclasses", {"metadata": {"name": "files"}, "provisioner": "efs.csi.aws.com"})
    ((level, said, remedy),) = found(mine, "claim", **volumes)
    assert (level, said) == (
        "problem",
        "ckpt is ReadWriteMany, and class disks (ebs.csi.aws.com) makes disks of one node",
    )
    assert remedy.endswith("classes that may have it: files")
    kube.put("persistentvolumeclaims", {**claim, "spec": {**claim["spec"], "storageClassName": "files"}})
    assert found(mine, "claim", **volumes)[0][:2] == ("warning", "ckpt is ReadWriteMany, and is not bound yet")
    kube.put("persistentvolumeclaims", {**claim, "spec": {**claim["spec"], "storageClassName": "none"}})
    assert found(mine, "claim", **volumes)[0][1].startswith("ckpt wants storage class none, which is not there")
