"""The daemon as the manifests start it, under the rights that they give it and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.discover.conftest import Place
from tests.support import manifests
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer
from tests.support.waiting import wait_until

__all__ = ["kube"]

Body = dict[str, Any]

ET_LABELS = {"group-name": "kai.alibabacloud.com", "training-job-name": "digits", "training-job-role": "worker"}
SETS_LABELS = {"app": "digits-worker"}

JOBS = {
    "mpijob.yaml": ("MPIJob", "hvd-launcher-digits", bodies.mpi_worker_labels("digits")),
    "mpijob-older.yaml": ("MPIJob", "hvd-launcher-digits", bodies.mpi_worker_labels("digits")),
    "trainingjob.yaml": ("TrainingJob", "digits-launcher", ET_LABELS),
    "statefulset.yaml": ("StatefulSet", "hvd-launcher-digits", SETS_LABELS),
}
LAUNCHER = "digits-launcher-x7x7x"


class Cluster:
    """A job's manifests applied, with two workers of its own and one that another job has put beside them."""

    def __init__(self, server: KubeServer, place: Place, name: str) -> None:
        self.server, self.place, self.name = server, place, name
        self.kind, self.account, labels = JOBS[name]
        server.apply([*manifests.documents("rbac.yaml"), *manifests.documents(name)])
        (self.job,) = (each for each in manifests.documents(name) if each["kind"] == self.kind)
        uid = server.get(f"{self.kind.lower()}s", self.job["metadata"]["name"])["metadata"]["uid"]
        server.put("nodes", bodies.node("node-0"))
        for number, (pod, of) in enumerate({"w-0": uid, "w-1": uid, "stranger": "another"}.items()):
            made = bodies.pod(
                pod, labels=labels, ip=f"10.0.0.{number + 1}", owner=(self.kind, "digits", of), subdomain=self.subdomain
            )
            server.put("pods", made)
        server.put("pods", launcher(running=True))

    @property
    def subdomain(self) -> str:
        return {"MPIJob": "digits", "StatefulSet": "digits-worker"}.get(self.kind, "")

    def command(self) -> list[object]:
        """What the manifest gives the daemon, in this test's directory and without the probe of pods that are none."""
        container = manifests.containers(manifests.pods(self.name)["launcher"])["discover"]
        own = ["--own-pod", LAUNCHER] if container.get("env") else []
        given = [each for each in container["args"] if not each.startswith(("--listen", "--admission-probe"))]
        arguments = [each.replace("/run/hvd/", f"{self.place.directory}/out/") for each in given]
        token = self.server.access.issue_for("default", self.account)
        kubeconfig = self.server.kubeconfig(self.place.directory / "kubeconfig", token=token)
        return [*arguments, *own, "--admission-probe", "none", "--kubeconfig", kubeconfig]

    def published(self) -> set[str]:
        return set((self.place.published() or "").split())

    def metric(self, name: str) -> float:
        _, text = self.place.get("/metrics")
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"hvd_discover_{name} "))


def launcher(*, running: bool) -> Body:
    made = bodies.pod(LAUNCHER, restartPolicy="OnFailure")
    made["spec"]["containers"][0]["name"] = made["status"]["containerStatuses"][0]["name"] = "launcher"
    if not running:
        made["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 0}}
    return made


@pytest.fixture(params=sorted(JOBS))
def cluster(request: pytest.FixtureRequest, kube: KubeServer, place: Place) -> Cluster:
    return Cluster(kube, place, request.param)


def hosts(cluster: Cluster) -> set[str]:
    suffix = f".{cluster.subdomain}.default.svc" if cluster.subdomain else ""
    return {f"w-{number}{suffix}:1" for number in (0, 1)}


def test_with_every_file_it_follows_the_jobs_own_workers_is_refused_nothing_and_ends_with_the_launcher(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.server.apply(_nodes_for(cluster.account))
    with cluster.place.serve_here(cluster.command()) as daemon:
        wait_until(lambda: cluster.published() == hosts(cluster), what="the hosts", timeout=60, show=cluster.published)
        wait_until(lambda: cluster.server.watches("nodes"), what="the watch of nodes", timeout=60)
        assert cluster.metric("node_watch_enabled") == 1.0
        assert cluster.server.counts.answers(403) == 0, caplog.text
        if cluster.name in ("mpijob-older.yaml", "trainingjob.yaml"):  # where the daemon is an ordinary container
            cluster.server.put("pods", launcher(running=False))
            assert daemon.wait(timeout=60) == 0
    assert cluster.published() == hosts(cluster)


@pytest.mark.parametrize("cluster", ["mpijob.yaml"], indirect=True)
def test_rule_16_without_the_administrators_file_it_does_without_nodes(cluster: Cluster) -> None:
    with cluster.place.serve_here(cluster.command()):
        wait_until(lambda: cluster.published() == hosts(cluster), what="the hosts", timeout=60, show=cluster.published)
        assert cluster.metric("node_watch_enabled") == 0.0


def _nodes_for(account: str) -> list[Mapping[str, Any]]:
    """nodes.yaml, changed as trainingjob.yaml says."""
    found = manifests.documents("nodes.yaml")
    found[1]["subjects"][0]["name"] = account
    return list(found)
