"""``hvd-elastic top``: on our server with what a metrics server says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvd_elastic_ext import cli
from hvd_elastic_ext.core.errors import Permanent
from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.jobs.cli import top
from hvd_elastic_ext.jobs.cluster import making
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.support.jobs import example, rendered
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer

__all__ = ["kube"]

MINE = {"hvd-elastic-job": "digits"}
METRICS = "pods.v1beta1.metrics.k8s.io"


@pytest.fixture
def cluster(kube: KubeServer, tmp_path: Path) -> Cluster:
    made = Cluster(Access(str(kube.kubeconfig(tmp_path / "config"))))
    making.create(made, list(rendered(example("mpijob")).objects))
    limits = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
    kube.put("pods", bodies.pod("digits-worker-0", labels=MINE, limits=limits))
    kube.put("pods", bodies.pod("digits-worker-1", labels=MINE))
    measured = [{"name": "worker", "usage": {"cpu": "500000000n", "memory": "1048576Ki"}}]
    kube.put(METRICS, {"metadata": {"name": "digits-worker-0", "labels": MINE}, "containers": measured})
    return made


def test_use_is_shown_beside_what_a_pod_may_have(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["top", "digits", "--kubeconfig", str(tmp_path / "config")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["digits-worker-0", "worker", "500m", "25%", "1024Mi", "25%", "1", "node-0"]
    assert lines[2] == ["digits-worker-1", "worker", "?", "?", "0", "node-0"]


def test_a_cluster_where_nobody_measures_is_told(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "METRICS", "metrics.k8s.io/v9")
    with pytest.raises(Permanent, match="this cluster has no metrics server"):
        top.of_job(cluster, "digits")


def test_without_a_name_pods_of_all_jobs_are_shown_and_no_others(
    cluster: Cluster, kube: KubeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.put("pods", bodies.pod("other-worker-0", labels={"hvd-elastic-job": "other"}))
    kube.put("pods", bodies.pod("nobodys"))
    assert cli.main(["top", "--kubeconfig", str(tmp_path / "config")]) == 0
    found = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert found == ["digits-worker-0", "digits-worker-1", "other-worker-0"]
