"""A real job that sleeps without a pod, and has its pods back. What they would run on is this machine."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.journal import Record
from hvd_elastic_ext.launcher.sleep.replica_requests import BEFORE
from tests.integration.launcher.conftest import Launched
from tests.integration.launcher.test_sleep import TWO, job, lose
from tests.support import rights
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube as kube  # a fixture
from tests.support.kube.server import KubeServer
from tests.support.kube.workers import Workers
from tests.support.waiting import wait_until

RELEASES = ("--sleep-releases", "pods", "--release-job", "mpijob/digits", "--wake-every", "1", "--wake-timeout", "2")
LOOK_S = 0.1
LONGEST_S = 240

pytestmark = pytest.mark.timeout(900)


class Cloud:
    """Worker N of the job is the Nth of the hosts, listed while it is ready; the second has no machine unless there is
    ``room``."""

    def __init__(self, kube: KubeServer, launched: Launched) -> None:
        self.kube, self.launched = kube, launched
        self.room = threading.Event()
        self.room.set()
        self._over = threading.Event()
        kube.put("nodes", bodies.node("n"))
        kube.put("mpijobs", bodies.mpi_job("digits", workers=2))
        self.workers = Workers(kube, "digits", nodes=["n"], start=self._start)
        self.lists = threading.Thread(target=self._list)

    def close(self) -> None:
        self._over.set()
        self.lists.join()

    @property
    def asked(self) -> int:
        replicas: int = self.kube.get("mpijobs", "digits")["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        return replicas

    def _start(self, pod: dict[str, Any]) -> None:
        while pod["metadata"]["name"] == "digits-worker-1" and self.asked and not self._over.is_set():
            if self.room.wait(LOOK_S):
                return

    def _list(self) -> None:
        before: tuple[str, ...] | None = None
        while not self._over.wait(LOOK_S):
            there = self.kube.all("pods")
            # One that is not wanted any more may still become ready, just before it is deleted.
            ready = {pod["metadata"]["name"] for pod in there if _ready(pod)} if self.asked else set()
            now = tuple(line for number, line in enumerate(TWO) if f"digits-worker-{number}" in ready)
            if now != before:
                self.launched.set_hosts(*now)
                before = now


def _ready(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


@pytest.fixture
def cloud(kube: KubeServer, launched: Launched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    kube.put("roles", {"metadata": {"name": "r"}, "rules": rights.rules(rights.SLEEP["mpi"])})
    subjects = [{"kind": "ServiceAccount", "name": "launcher"}]
    kube.put(
        "rolebindings", {"metadata": {"name": "r"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects}
    )
    config = kube.kubeconfig(tmp_path / "kubeconfig", token=kube.access.issue_for("default", "launcher"))
    monkeypatch.setenv("KUBECONFIG", str(config))
    made = Cloud(kube, launched)
    with made.workers:
        made.lists.start()
        yield made
        made.close()


def lose_the_second(cloud: Cloud, launched: Launched) -> Record:
    """Its machine is taken back, and there is no other: the job goes to sleep, and its pods go."""
    cloud.room.clear()
    lose(launched, launched.process, "127.0.0.1")
    cloud.kube.delete("pods", "digits-worker-1")
    launched.wait_for("the job to sleep", lambda: launched.events("slept"), timeout=LONGEST_S)
    launched.wait_for("no pod is left", lambda: not cloud.kube.all("pods"), timeout=LONGEST_S)
    return launched.events("slept")[-1]


@pytest.mark.soak
def test_a_sleeping_job_has_no_pod_and_resumes_at_the_same_step(launched: Launched, cloud: Cloud) -> None:
    wait_until(lambda: launched.hosts.exists() and launched.hosts.read_text().count(":1") == 2, what="two hosts")
    with launched.run(*job(launched, *RELEASES)) as process:
        launched.wait_for_steps(2, timeout=LONGEST_S)
        night = lose_the_second(cloud, launched)
        launched.wait_for("a second try", lambda: len(launched.events("released")) >= 2, timeout=LONGEST_S)
        assert not launched.events("woke")
        cloud.room.set()
        launched.wait_for("training again", lambda: launched.events("inherited"), timeout=LONGEST_S)
        assert launched.events("resumed")[0].get("step") == night.get("step")
        nights = [record.event for record in launched.events("slept", "woke", "released")]
        assert not any(pair == ("woke", "released") for pair in itertools.pairwise(nights)), nights
        launched.wait_for("that nothing is owed", lambda: BEFORE not in _annotations(cloud), timeout=LONGEST_S)
        assert cloud.asked == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, process.output
    assert launched.events("released")[0].get("before") == 2


@pytest.mark.soak
def test_a_launcher_killed_during_sleep_is_restarted_and_gets_its_workers_back(
    launched: Launched, cloud: Cloud
) -> None:
    wait_until(lambda: launched.hosts.exists() and launched.hosts.read_text().count(":1") == 2, what="two hosts")
    with launched.run(*job(launched, *RELEASES, "--wake-every", "600")) as process:
        launched.wait_for_steps(2, timeout=LONGEST_S)
        night = lose_the_second(cloud, launched)
        process.kill()
        process.wait(60)
    cloud.room.set()
    assert cloud.asked == 0
    with launched.run(*job(launched, *RELEASES, "--wake-every", "600")):
        launched.wait_for("training again", lambda: launched.events("inherited"), timeout=LONGEST_S)
        assert launched.events("resumed")[-1].get("step") == night.get("step")
        assert cloud.asked == 2


def _annotations(cloud: Cloud) -> dict[str, str]:
    found: dict[str, str] = cloud.kube.get("mpijobs", "digits")["metadata"].get("annotations") or {}
    return found
