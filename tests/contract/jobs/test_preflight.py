"""``hvd-elastic preflight``, on our server and, with HVD_TEST_KUBECONFIG, on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.io.kube_access import Access
from hvd_elastic_ext.jobs.cluster import preflight
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.contract.kube.conftest import Space
from tests.support.jobs import example
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


# --- what a real server cannot be made to do


def test_whoever_may_do_nothing_is_told_so_with_each_object(kube: KubeServer, tmp_path: Path) -> None:
    kube.put("serviceaccounts", {"metadata": {"name": "guest"}})
    token = kube.access.issue_for("default", "guest")
    guest = Cluster(Access(str(kube.kubeconfig(tmp_path / "config", token=token))))
    found = list(preflight.look(guest, example("mpijob")))
    refused = {each.what for each in found if each.level == "problem"}
    assert refused == {"ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "MPIJob"}
    assert all("403 Forbidden" in each.found for each in found if each.level == "problem")
    assert len([each for each in found if each.what == "rights" and each.level == "warning"]) == 4
    assert {each.what: each.level for each in found if each.level == "unknown"}.keys() == {"nodes", "quota", "images"}
