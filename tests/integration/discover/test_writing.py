"""The daemon as a process, under the rights of the manifests: what it writes to the API server."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

from discover.reap.reaper import ReapLimits
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

    def workers(self, stop: Callable[[Any], None] = lambda pod: None) -> Workers:
        return Workers(self.server, "digits", nodes=["n-0", "n-1", "n-2"], stop=stop)

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


def test_an_evicted_worker_is_recorded_deleted_made_again_and_a_host_again(place: Place, kube: KubeServer) -> None:
    """Failed pods are never made again, and so the job would be one worker short for good."""
    job = Job(place, kube, "reap.yaml")
    with job.workers(), place.serve_as(job.options("--reap-failed", "--hosts-file", str(place.hosts))) as daemon:
        job.publishes(0, 1, 2)
        before, since = job.uid(1), time.monotonic()
        cluster_events.fail(kube, "digits-worker-1", reason="Evicted")
        job.publishes(0, 2)
        daemon.wait_for(r"reaping pod default/digits-worker-1 \(evicted\): pod was evicted", timeout=DEADLINE)
        wait_until(lambda: job.uid(1) not in ("", before), what="a new pod", timeout=DEADLINE)
        assert time.monotonic() - since >= ReapLimits().linger  # it is left to be seen for a moment
        job.publishes(0, 1, 2)
        assert job.metric('pods_reaped_total{cause="evicted"}') == 1.0
        assert kube.counts.answers(403) == 0, daemon.stderr


def test_without_being_asked_to_it_deletes_nobody(place: Place, kube: KubeServer) -> None:
    job = Job(place, kube, "reap.yaml")
    with job.workers(), place.serve_as(job.options("--hosts-file", str(place.hosts))):
        job.publishes(0, 1, 2)
        for number in (0, 1):
            cluster_events.fail(kube, f"digits-worker-{number}", reason="Evicted")
        job.publishes(2)
        kube.change(
            "pods", "digits-worker-0", {"status": {"phase": "Running", "conditions": [bodies.condition("Ready")]}}
        )
        job.publishes(0, 2)
    assert kube.counts.of("delete", "pods") == 0


def test_a_start_while_the_server_is_away_takes_nobody_out_of_the_hosts_file(place: Place, kube: KubeServer) -> None:
    job = Job(place, kube)
    options = job.options("--no-events", "--publish-to", str(place.hosts))
    with job.workers(), contextlib.ExitStack() as daemons:
        with place.serve_as(options) as first:
            job.publishes(0, 1, 2)
            first.terminate()
            assert first.wait(timeout=DEADLINE) == 0
        node = kube.get("pods", "digits-worker-1")["spec"]["nodeName"]
        kube.change("nodes", node, {"spec": {"unschedulable": True}})  # kept if it is published, else not added
        with kube.down():
            second = daemons.enter_context(place.serve_as(options))
            second.wait_for("refused.*keeping the hosts known so far", timeout=DEADLINE)
            assert place.get("/livez")[0] == 200
            job.publishes(0, 1, 2)
        second.wait_for("hosts: sequence=1: 3 hosts", timeout=DEADLINE)
        job.publishes(0, 1, 2)


def test_one_look_deletes_nobody(place: Place, kube: KubeServer) -> None:
    job = Job(place, kube, "reap.yaml")
    with job.workers():
        wait_until(
            lambda: [each["status"]["phase"] for each in kube.all("pods")] == ["Running"] * 3, what="pods", timeout=60
        )
        cluster_events.fail(kube, "digits-worker-1")
        with place.run_as(job.options("--once", "--reap-failed", "--publish-to", str(place.hosts))) as once:
            assert once.wait(timeout=DEADLINE) == 0, once.output
        job.publishes(0, 2)
    assert kube.counts.of("delete", "pods") == kube.counts.of("create", "events") == 0


def test_a_server_that_takes_no_writes_makes_no_host_late(place: Place, kube: KubeServer) -> None:
    job = Job(place, kube, "reap.yaml")
    hung = kube.faults.on("delete", "pods").hang()
    with job.workers(), place.serve_as(job.options("--reap-failed", "--publish-to", str(place.hosts))) as daemon:
        job.publishes(0, 1, 2)
        cluster_events.fail(kube, "digits-worker-1", reason="Evicted")
        job.publishes(0, 2)
        hung.wait(timeout=DEADLINE)
        cluster_events.fail(kube, "digits-worker-2", reason="Evicted")
        job.publishes(0)
        assert place.get("/livez")[0] == 200
        daemon.terminate()
        assert daemon.wait(timeout=DEADLINE) == 0
