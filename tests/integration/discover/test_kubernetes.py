"""The real command on an API server: what is in the hosts file, whatever becomes of the server."""

from __future__ import annotations

import json
import signal
import time

import pytest

from discover.cli import main
from tests.support.kube import bodies
from tests.support.kube.clock import unix
from tests.support.kube.fixtures import kube
from tests.support.waiting import wait_until

__all__ = ["kube"]

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

    def options(self, *more: object) -> list[object]:
        kubeconfig = self.server.kubeconfig(self.place.directory / "kubeconfig")
        source = ["--source", "kubernetes", "--job", "job", "--kubeconfig", kubeconfig, "--admission-probe", "none"]
        return [*source, "--settle", "0.1", *more]

    def serve(self):
        return self.place.serve_as(self.options("--hosts-file", self.place.hosts))

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


@pytest.fixture
def job(place, kube):
    put(kube, "a", "b")
    return Job(place, kube)


def test_rule_06_pods_come_and_go_and_only_that_moves_the_file_though_the_server_is_away_meanwhile(job):
    put(job.server, "a", "b", "c")  # c is in each list, so none waits for readers of the one before
    with job.serve() as daemon:
        job.publishes("a", "b", "c")
        put(job.server, "d")
        job.publishes("a", "b", "c", "d")
        job.server.delete("pods", "a", grace=30)
        job.publishes("b", "c", "d")
        departure = job.departs("a")["a"]
        assert departure["host"] == "a.job.default.svc"
        assert departure["deadline"] > time.time()

        wait_until(lambda: job.server.watches("pods"), what="the watch", timeout=60)
        before = job.place.hosts.stat()
        with job.server.down():
            daemon.wait_for("pods of namespace default .*no answer")
            assert job.place.get("/livez")[0] == 200
            job.server.remove("pods", "b")
            after = job.place.hosts.stat()
            assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
        job.publishes("c", "d")

        job.server.refuse()
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait() == 0
    assert sorted(job.place.published().splitlines()) == text("c", "d").splitlines()


def test_rule_17_a_deletion_is_published_within_a_quarter_of_a_second_and_its_deadline_is_the_pods_own(job):
    """Whatever waited on the way would make every one late; a busy machine makes some late."""
    names = [f"p{number}" for number in range(20)]
    put(job.server, *names)
    took = []
    with job.place.serve_as(job.options("--hosts-file", job.place.hosts, "--settle", "1")):
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


def test_one_look_names_every_pod_and_why_and_what_stands_on_the_job(job, capsys):
    body = bodies.mpi_job("job")
    body["metadata"]["annotations"] = {"job-supervisor.kube-ai.io/spot-instance": "true"}
    owner = ("MPIJob", "job", job.server.put("mpijobs", body)["metadata"]["uid"])
    job.server.put("pods", bodies.pod("a", node="node-of-a", labels=LABELS, owner=owner))
    job.server.put("pods", bodies.pod("c", node="node-of-a", labels=LABELS, owner=owner, ready=False))
    assert main([*map(str, job.options("--once", "-o", "json"))]) == 0
    pods = {row["pod"]: (row["verdict"], row["reason"]) for row in json.loads(capsys.readouterr().out)["pods"]}
    assert pods["default/a"] == ("usable", "ready; job runs on spot instances (true)")
    assert pods["default/b"][0] == "unfit"
    assert "not this job's" in pods["default/b"][1]
    assert pods["default/c"][0] == "unfit"
    assert "not ready" in pods["default/c"][1]


def test_one_look_at_a_server_that_is_away_is_one_line_and_exit_code_1(job, capsys, caplog):
    with job.server.down():
        assert main([*map(str, job.options("--once"))]) == 1
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith("onnection refused")
    assert "keeping the hosts" not in said + caplog.text  # there are none yet
