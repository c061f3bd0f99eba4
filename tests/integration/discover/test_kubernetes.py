"""The real command on an API server: what is in the hosts file, whatever becomes of the server."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from tests.support.kube import bodies, statuses
from tests.support.kube.clock import unix
from tests.support.kube.fixtures import kube, kube_tls
from tests.support.waiting import wait_until

__all__ = ["kube", "kube_tls"]

LABELS = bodies.mpi_worker_labels("job")


def put(server, *names: str) -> None:
    for number, name in enumerate(names):
        server.put("nodes", bodies.node(f"node-of-{name}"))
        server.put("pods", bodies.pod(name, node=f"node-of-{name}", labels=LABELS, ip=f"10.0.0.{number + 1}"))


def text(*names: str) -> str:
    return "".join(f"{name}.job.default.svc:1\n" for name in names)


class Job:
    """A daemon of one job, and what it publishes."""

    def __init__(self, place, server) -> None:
        self.place = place
        self.server = server

    def options(self, *more: object, token: str | None = None) -> list[object]:
        kubeconfig = self.server.kubeconfig(self.place.directory / "kubeconfig", token=token)
        source = ["--source", "kubernetes", "--job", "job", "--kubeconfig", kubeconfig, "--admission-probe", "none"]
        return [*source, "--settle", "0.1", *more]

    def serve(self, *, token: str | None = None):
        return self.place.serve_as(self.options("--hosts-file", self.place.hosts, token=token))

    def watches(self) -> None:
        wait_until(lambda: self.server.watches("pods"), what="the watch", timeout=60)

    def publishes(self, *names: str) -> None:
        """Order is seniority, and of newcomers by name."""
        wanted = sorted(text(*names).splitlines())
        wait_until(
            lambda: sorted((self.place.published() or "-").splitlines()) == wanted,
            what=f"{names} in the file",
            timeout=60,
            show=self.place.published,
        )

    def departs(self, *names: str) -> dict[str, dict]:
        """The push follows the file a moment later."""

        def departing() -> dict[str, dict]:
            _, body = self.place.get("/hosts")
            return {each["host"].partition(".")[0]: each for each in json.loads(body)["departing"]}

        wait_until(lambda: set(departing()) == set(names), what=f"{names} to depart", timeout=60, show=departing)
        return departing()

    def metric(self, name: str) -> float | None:
        _, body = self.place.get("/metrics")
        found = re.search(rf"^hvd_discover_{re.escape(name)} (\S+)$", body, re.MULTILINE)
        return None if found is None else float(found[1])

    def metric_is(self, name: str, value: float) -> None:
        wait_until(
            lambda: self.metric(name) == value, what=f"{name} {value}", timeout=60, show=lambda: self.metric(name)
        )


@pytest.fixture
def job(place, kube):
    put(kube, "a", "b")
    return Job(place, kube)


def test_rule_01_02_06_19_28_pods_come_and_go_and_only_their_changes_move_the_file(job):
    with job.serve() as daemon:
        job.publishes("a", "b")
        put(job.server, "c", "d")
        job.publishes("a", "b", "c", "d")
        job.server.delete("pods", "a", grace=30)
        job.publishes("b", "c", "d")
        departure = job.departs("a")["a"]
        assert departure["host"] == "a.job.default.svc"
        assert departure["deadline"] > time.time()

        said = bodies.condition("Ready", False, reason="KubeletNotReady")
        said["message"] = "node is shutting down"
        job.server.change("nodes", "node-of-d", {"status": {"conditions": [said]}})
        job.publishes("b", "c")
        assert job.departs("a", "d")["d"]["reason"].startswith("node node-of-d is shutting down")
        conditions = job.server.get("pods", "d")["status"]["conditions"]
        assert {each["type"]: each["status"] for each in conditions}["Ready"] == "True", "the node alone has said it"

        job.watches()
        before, sequence = job.place.hosts.stat(), json.loads(job.place.get("/hosts")[1])["sequence"]
        plan = job.server.faults.on("watch", "pods", times=1).answer(statuses.too_old(1, 2))
        job.server.close_watches("pods")
        plan.wait()
        job.metric_is('relists_total{resource="pods"}', 1.0)
        job.watches()
        assert json.loads(job.place.get("/hosts")[1])["sequence"] == sequence
        with job.server.down():
            daemon.wait_for("pods of namespace default .*refused")
            assert job.place.get("/livez")[0] == 200
            job.server.remove("pods", "b")
            after = job.place.hosts.stat()
            assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        job.publishes("c")

        job.server.refuse()
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait() == 0
    assert job.place.published() == text("c")


def test_a_server_that_is_not_verified_is_told_of_in_one_line(place, kube_tls):
    put(kube_tls, "a", "b")
    job = Job(place, kube_tls)
    options = [*job.options("--hosts-file", place.hosts), "--kubeconfig", place.directory / "insecure"]
    kube_tls.kubeconfig(place.directory / "insecure", insecure=True)
    with place.serve_as(options) as daemon:
        job.publishes("a", "b")
        kube_tls.delete("pods", "a", grace=30)
        job.publishes("b")
    assert daemon.stderr.count("insecure-skip-tls-verify") == 1
    assert "InsecureRequestWarning" not in daemon.stderr


def test_rule_17_a_deletion_is_published_within_a_quarter_of_a_second_and_its_deadline_is_the_pods_own(job):
    """Whatever waited on the way would make every one late; a busy machine makes some late."""
    names = [f"p{number}" for number in range(20)]
    put(job.server, *names)
    took = []
    with job.place.serve_as(job.options("--hosts-file", job.place.hosts, "--settle", "30")):
        job.publishes("a", "b", *names)
        for name in names:
            begun = time.monotonic()
            job.server.delete("pods", name, grace=600)
            wait_until(lambda name=name: f"{name}." not in job.place.published(), what=f"{name} to go", timeout=60)
            took.append(time.monotonic() - begun)
            own = unix(job.server.get("pods", name)["metadata"]["deletionTimestamp"])
            assert job.departs(*names[: len(took)])[name]["deadline"] == own
            if took[-1] < 0.25:
                return
    pytest.fail(f"no deletion was published within 0.25 s: {took}")


def test_a_daemon_that_starts_before_its_server_waits_for_it(job):
    with job.server.down(), job.serve() as daemon:
        daemon.wait_for("refused")
        assert job.place.published() is None
        assert job.place.get("/startupz")[0] != 200
        job.server.accept()
        job.publishes("a", "b")
        wait_until(lambda: job.place.get("/startupz")[0] == 200, what="the daemon to say that it has started")


def test_one_look_names_every_pod_and_why_and_what_stands_on_the_job(job):
    body = bodies.mpi_job("job")
    body["metadata"]["annotations"] = {"job-supervisor.kube-ai.io/spot-instance": "true"}
    owner = ("MPIJob", "job", job.server.put("mpijobs", body)["metadata"]["uid"])
    job.server.put("pods", bodies.pod("a", node="node-of-a", labels=LABELS, owner=owner))
    job.server.put("pods", bodies.pod("c", node="node-of-a", labels=LABELS, owner=owner, ready=False))
    with job.place.run_as([*job.options("--once", "-o", "json")]) as once:
        assert once.wait() == 0
    pods = {row["pod"]: (row["verdict"], row["reason"]) for row in json.loads(once.stdout.splitlines()[-1])["pods"]}
    assert pods["default/a"] == ("usable", "ready; job runs on spot instances (true)")
    assert pods["default/b"][0] == "unfit"
    assert "not this job's" in pods["default/b"][1]
    assert pods["default/c"][0] == "unfit"
    assert "not ready" in pods["default/c"][1]


def test_one_look_at_a_server_that_is_away_is_one_line_and_exit_code_1(job):
    with job.server.down(), job.place.run_as([*job.options("--once")]) as once:
        assert once.wait() == 1
    assert "Connection refused\n" in once.output
    assert "keeping the hosts" not in once.output  # there are none yet
    assert "Traceback" not in once.output
