"""The daemon under the rights of the manifests: what it writes to the API server."""

from __future__ import annotations

import logging
import re

import pytest

from discover.cli import main
from discover.reap.reaper import ReapLimits
from tests.contract.discover.followed_server import HurriedClock
from tests.integration.discover.conftest import Place
from tests.support.kube import bodies, cluster_events
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer
from tests.support.kube.workers import Workers
from tests.support.manifests import documents
from tests.support.waiting import wait_until

__all__ = ["kube"]

DEADLINE = 100.0


class Job:
    """An MPIJob ``digits`` whose workers a stand-in for its controller keeps alive, and a daemon that follows it."""

    def __init__(self, place: Place, server: KubeServer, *files: str) -> None:
        self.place, self.server = place, server
        for file in ("rbac.yaml", "nodes.yaml", "mpijob.yaml", *files):
            server.apply(each for each in documents(file) if each["kind"] != "MPIJob")
        for number in range(3):
            server.put("nodes", bodies.node(f"n-{number}"))
        server.put("mpijobs", bodies.mpi_job("digits", workers=3))

    def workers(self) -> Workers:
        return Workers(self.server, "digits", nodes=["n-0", "n-1", "n-2"])

    def options(self, *more: str) -> list[object]:
        token = self.server.access.issue_for("default", "hvd-launcher-digits")
        kubeconfig = self.server.kubeconfig(self.place.directory / "kubeconfig", token=token)
        source = ["--source=kubernetes", "--job=digits", "--admission-probe=none", "--settle=0.1"]
        return [*source, "--kubeconfig", kubeconfig, *more]

    def publishes(self, *numbers: int) -> None:
        wanted = {host(number) for number in numbers}
        wait_until(
            lambda: set((self.place.published() or "").split()) == wanted,
            what=f"{wanted}",
            timeout=DEADLINE,
            show=self.place.published,
        )

    def uid(self, number: int) -> str:
        """Of a worker; "" while there is none."""
        try:
            return str(self.server.get("pods", f"digits-worker-{number}")["metadata"]["uid"])
        except KeyError:
            return ""

    def metric(self, name: str) -> float:
        _, text = self.place.get("/metrics")
        found = re.search(rf"^hvd_discover_{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return 0.0 if found is None else float(found[1])


def host(number: int) -> str:
    return f"digits-worker-{number}.digits.default.svc:1"


def test_an_evicted_worker_is_recorded_deleted_made_again_and_a_host_again(
    place: Place, kube: KubeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Failed pods are never made again, and so the job would be one worker short for good."""
    caplog.set_level(logging.INFO)
    job, clock = Job(place, kube, "reap.yaml"), HurriedClock(10.0)
    options = job.options("--reap-failed", "--hosts-file", str(place.hosts))
    with job.workers(), place.serve_here(options, clock=clock):
        job.publishes(0, 1, 2)
        before, since = job.uid(1), clock.mono()
        cluster_events.fail(kube, "digits-worker-1", reason="Evicted")
        job.publishes(0, 2)
        wait_until(lambda: job.uid(1) not in ("", before), what="a new pod", timeout=DEADLINE)
        assert clock.mono() - since >= ReapLimits().linger  # it is left to be seen for a moment
        job.publishes(0, 1, 2)
        assert job.metric('pods_reaped_total{cause="evicted"}') == 1.0
        assert "reaping pod default/digits-worker-1 (evicted): pod was evicted" in caplog.text
        assert kube.counts.answers(403) == 0, caplog.text


def test_one_look_deletes_nobody(place: Place, kube: KubeServer) -> None:
    job = Job(place, kube, "reap.yaml")
    with job.workers():
        wait_until(
            lambda: [each["status"]["phase"] for each in kube.all("pods")] == ["Running"] * 3, what="pods", timeout=60
        )
        cluster_events.fail(kube, "digits-worker-1")
        assert main([*map(str, job.options("--once", "--reap-failed", "--publish-to", str(place.hosts)))]) == 0
        job.publishes(0, 2)
    assert kube.counts.of("delete", "pods") == kube.counts.of("create", "events") == 0
