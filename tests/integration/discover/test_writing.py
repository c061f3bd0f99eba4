"""The daemon as a process, under the rights of the manifests: what it writes to the API server."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

from discover.actions.reap_policy import ReapLimits
from tests.integration.discover.conftest import Place
from tests.support.kube import bodies, cluster_events
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer
from tests.support.kube.workers import Workers
from tests.support.manifests import containers, documents, pods
from tests.support.waiting import wait_until

__all__ = ["kube"]

DEADLINE = 100.0


class Job:
    """An MPIJob ``digits`` whose workers a stand-in for its controller keeps alive, and a daemon that follows it."""

    def __init__(self, place: Place, server: KubeServer, *files: str) -> None:
        self.place, self.server = place, server
        for file in ("rbac.yaml", "nodes.yaml", "standalone.yaml", *files):
            server.apply(each for each in documents(file) if each["kind"] != "Deployment")
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

    def events(self, reason: str) -> list[str]:
        return [each["message"] for each in self.server.all("events") if each["reason"] == reason]

    def hosts(self) -> set[str]:
        data = self.server.get("configmaps", "digits-hosts").get("data") or {}
        return set(data.get("hosts", "").split())

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
        daemon.wait_for("Events about the hosts are attached to MPIJob default/digits", timeout=DEADLINE)
        before, since = job.uid(1), time.monotonic()
        cluster_events.fail(kube, "digits-worker-1", reason="Evicted")
        job.publishes(0, 2)
        daemon.wait_for(r"reaping pod default/digits-worker-1 \(evicted\): pod was evicted", timeout=DEADLINE)
        wait_until(lambda: job.uid(1) not in ("", before), what="a new pod", timeout=DEADLINE)
        assert time.monotonic() - since >= ReapLimits().linger  # it is left to be seen for a moment
        job.publishes(0, 1, 2)
        (told,) = wait_until(lambda: job.events("HostsLost"), what="an Event of the loss", timeout=DEADLINE)
        assert told.startswith(
            "1 host is lost, "
        )  # how many are left, and whether the pod still is, is a matter of pace
        assert "left: digits-worker-1" in told
        wait_until(lambda: job.events("WorkersReaped"), what="an Event of the deletion", timeout=DEADLINE)
        assert {each["involvedObject"]["kind"] for each in kube.all("events")} == {"MPIJob"}
        assert job.metric('pods_reaped_total{cause="evicted"}') == 1.0
        assert job.metric('events_sent_total{reason="HostsLost"}') == 1.0
        assert kube.counts.answers(403) == 0, daemon.stderr


def test_without_being_asked_to_it_deletes_nobody_and_without_events_it_tells_nobody(
    place: Place, kube: KubeServer
) -> None:
    job = Job(place, kube, "reap.yaml")
    with job.workers(), place.serve_as(job.options("--no-events", "--hosts-file", str(place.hosts))):
        job.publishes(0, 1, 2)
        for number in (0, 1):
            cluster_events.fail(kube, f"digits-worker-{number}", reason="Evicted")
        job.publishes(2)
        kube.change(
            "pods", "digits-worker-0", {"status": {"phase": "Running", "conditions": [bodies.condition("Ready")]}}
        )
        job.publishes(0, 2)
    assert kube.counts.of("delete", "pods") == kube.counts.of("create", "events") == 0


def test_alone_as_the_manifest_starts_it_it_keeps_the_configmap_and_a_second_one_stands_by(
    place: Place, kube: KubeServer
) -> None:
    job = Job(place, kube, "configmap.yaml")
    given = containers(pods("standalone.yaml")["daemon"])["discover"]["args"]
    own = [each for each in given if not each.startswith(("--listen", "--admission-probe"))]
    options = [*own, *job.options()[2:]]
    with job.workers(), place.serve_as(options) as first:
        wait_until(lambda: job.hosts() == {host(0), host(1), host(2)}, what="the hosts", timeout=DEADLINE)
        assert "publication.json" in kube.get("configmaps", "digits-hosts")["data"]
        wait_until(lambda: job.metric("configmap_owner") == 1.0, what="the owner's mark", timeout=DEADLINE)
        assert job.metric("configmap_writes_total") >= 1.0
        with place.run_as([*options, "--listen", f"unix://{place.directory}/s2"]) as second:
            second.wait_for("standing by: configmap default/digits-hosts", timeout=DEADLINE)
            kube.change("mpijobs", "digits", {"spec": {"mpiReplicaSpecs": {"Worker": {"replicas": 2}}}})
            wait_until(lambda: job.hosts() == {host(0), host(1)}, what="two hosts", timeout=DEADLINE)
            first.terminate()
            assert first.wait(timeout=DEADLINE) == 0
            second.wait_for("written by this daemon now", timeout=DEADLINE)
            assert job.hosts() == {host(0), host(1)}
            assert kube.counts.answers(403) == 0, first.stderr + second.stderr


def test_a_start_while_the_server_is_away_takes_nobody_out_of_the_configmap(place: Place, kube: KubeServer) -> None:
    job, everybody = Job(place, kube, "configmap.yaml"), {host(0), host(1), host(2)}
    options = job.options("--configmap=digits-hosts", "--no-events")
    with job.workers(), contextlib.ExitStack() as daemons:
        with place.serve_as(options) as first:
            wait_until(lambda: job.hosts() == everybody, what="the hosts", timeout=DEADLINE)
            first.terminate()
            assert first.wait(timeout=DEADLINE) == 0
        node = kube.get("pods", "digits-worker-1")["spec"]["nodeName"]
        kube.change("nodes", node, {"spec": {"unschedulable": True}})  # kept if it is published, else not added
        with kube.down():
            second = daemons.enter_context(place.serve_as(options))
            second.wait_for("what was published before is not known yet: .*refused", timeout=DEADLINE)
            assert place.get("/livez")[0] == 200
        second.wait_for("hosts: sequence=1: 3 hosts", timeout=DEADLINE)
        wait_until(lambda: job.metric("configmap_owner") == 1.0, what="the owner's mark", timeout=DEADLINE)
        assert job.hosts() == everybody


def test_one_look_writes_the_configmap_if_it_is_told_to_and_nothing_else(place: Place, kube: KubeServer) -> None:
    job = Job(place, kube, "configmap.yaml", "reap.yaml")
    with job.workers():
        wait_until(
            lambda: [each["status"]["phase"] for each in kube.all("pods")] == ["Running"] * 3, what="pods", timeout=60
        )
        cluster_events.fail(kube, "digits-worker-1")
        with place.run_as(job.options("--once", "--reap-failed")) as once:
            assert once.wait(timeout=DEADLINE) == 0
        assert job.hosts() == set()
        with place.run_as(job.options("--once", "--configmap=digits-hosts")) as once:
            assert once.wait(timeout=DEADLINE) == 0, once.output
        assert job.hosts() == {host(0), host(2)}
    assert kube.counts.of("delete", "pods") == kube.counts.of("create", "events") == 0


def test_a_server_that_takes_no_writes_makes_no_host_late(place: Place, kube: KubeServer) -> None:
    job = Job(place, kube, "configmap.yaml", "reap.yaml")
    hung = [kube.faults.on(verb, kind).hang() for verb, kind in (("get", "leases"), ("create", "events"))]
    options = job.options("--configmap=digits-hosts", "--reap-failed", "--hosts-file", str(place.hosts))
    with job.workers(), place.serve_as(options) as daemon:
        job.publishes(0, 1, 2)
        hung[0].wait(timeout=DEADLINE)
        cluster_events.fail(kube, "digits-worker-1", reason="Evicted")
        job.publishes(0, 2)
        assert job.hosts() == set()
        assert place.get("/livez")[0] == 200
        daemon.terminate()
        assert daemon.wait(timeout=DEADLINE) == 0
