"""The daemon is told to end while nothing is answered, and while all that it has waits for the server."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import yaml

from tests.integration.discover.conftest import Place
from tests.support.kube import bodies, cluster_events
from tests.support.kube.fixtures import kube_tls
from tests.support.kube.server import KubeServer
from tests.support.processes import RunningProcess
from tests.support.waiting import wait_until

__all__ = ["kube_tls"]

DEADLINE = 100.0
BOUND = 2.0
"""Seconds, by the contract."""

WAITING = 4
"""Connections of a daemon that begins: pods, nodes, the job, its own pod."""


PLUGIN = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "sh",
    "interactiveMode": "Never",
}


def options(place: Place, server: KubeServer) -> list[object]:
    kubeconfig = server.kubeconfig(place.directory / "kubeconfig")
    source = ["--source=kubernetes", "--job=digits", "--admission-probe=none", "--settle=0.1"]
    beside = ["--reap-failed", "--own-pod=launcher"]
    return [*source, *beside, "--kubeconfig", kubeconfig]


def ends_in(daemon: RunningProcess) -> float:
    """Tell it to, and say how many seconds it took."""
    begun = time.monotonic()
    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(DEADLINE) == 0
    return time.monotonic() - begun


def at_its_best(took: Callable[[], float]) -> None:
    """Whatever waits too long does so each time; a busy machine makes some late."""
    all_of_them = [took()]
    while all_of_them[-1] >= BOUND and len(all_of_them) < 3:
        all_of_them.append(took())
    assert all_of_them[-1] < BOUND, all_of_them


def test_rule_28_it_ends_in_under_two_seconds_where_no_connection_ever_comes_to_stand(
    place: Place, kube_tls: KubeServer
) -> None:
    def took() -> float:
        before = kube_tls.counts.connections
        with kube_tls.hangs(), place.serve_as(options(place, kube_tls)) as daemon:
            wait_until(
                lambda: kube_tls.counts.connections >= before + WAITING,
                what="all that it begins with",
                timeout=DEADLINE,
            )
            return ends_in(daemon)

    at_its_best(took)


def test_rule_28_it_ends_in_under_two_seconds_while_it_waits_for_its_first_credentials(
    place: Place, kube_tls: KubeServer
) -> None:
    told = place.directory / "asked"
    config = yaml.safe_load(kube_tls.kubeconfig(place.directory / "kubeconfig").read_text())
    config["users"][0]["user"] = {"exec": {**PLUGIN, "args": ["-c", f"echo $$ >{told}; exec sleep 1000"]}}
    path = place.directory / "with-plugin"
    path.write_text(yaml.safe_dump(config))

    def took() -> float:
        told.unlink(missing_ok=True)
        with place.serve_as(["--source=kubernetes", "--job=digits", "--kubeconfig", path]) as daemon:
            wait_until(lambda: told.exists() and told.read_text().strip(), what="the plugin", timeout=DEADLINE)
            return ends_in(daemon)

    at_its_best(took)


def test_rule_28_while_all_requests_hang_hosts_are_in_time_and_it_ends_in_under_two_seconds(
    place: Place, kube_tls: KubeServer
) -> None:
    owner = kube_tls.put("mpijobs", bodies.mpi_job("digits"))["metadata"]["uid"]
    labels = bodies.mpi_worker_labels("digits")

    def publishes(*names: str) -> None:
        wanted = "".join(f"{name}.job.default.svc:1\n" for name in names)
        wait_until(lambda: place.published() == wanted, what=f"{names}", timeout=DEADLINE, show=place.published)

    def took() -> float:
        for name in ("a", "b"):
            kube_tls.put("nodes", bodies.node(f"n-{name}"))
            kube_tls.put("pods", bodies.pod(name, node=f"n-{name}", labels=labels, owner=("MPIJob", "digits", owner)))
        with place.serve_as([*options(place, kube_tls), "--hosts-file", place.hosts]) as daemon:
            publishes("a", "b")
            wait_until(lambda: kube_tls.watches("pods"), what="the watch", timeout=DEADLINE)
            reaping = kube_tls.faults.on("delete", "pods").hang()
            kube_tls.faults.on().hang()
            said = {**bodies.condition("Ready", False), "message": "node is shutting down"}
            kube_tls.change("nodes", "n-a", {"status": {"conditions": [said]}})
            publishes("b")
            reaping.wait(timeout=DEADLINE)
            cluster_events.fail(kube_tls, "b", reason="Evicted")
            publishes("a")  # it still runs, and so it is the last survivor
            assert place.get("/livez")[0] == 200
            took = ends_in(daemon)
        kube_tls.faults.clear()
        return took

    at_its_best(took)
