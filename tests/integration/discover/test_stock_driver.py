"""Stock Horovod's own driver and discovery script, fed by the daemon from an API server; its workers are threads."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.workers import Workers
from tests.support.waiting import wait_until

__all__ = ["kube"]

discovery = pytest.importorskip("horovod.runner.elastic.discovery", reason="needs Horovod: run scripts/setup")
elastic_driver = pytest.importorskip("horovod.runner.elastic.driver", reason="needs Horovod: run scripts/setup")

DEADLINE = 90.0


COOLDOWN = (600, 601)


class Job:
    """What `horovodrun` keeps of a job, with workers that do nothing until they are told to end."""

    def __init__(self, script: str) -> None:
        self._ended = threading.Event()
        self._failing: dict[str, threading.Event] = {}
        found = discovery.HostDiscoveryScript(script, 1)
        self.driver = elastic_driver.ElasticDriver(
            Mock(), found, min_num_proc=1, max_num_proc=8, timeout=60, cooldown_range=COOLDOWN
        )

    def start(self, size: int) -> None:
        self.driver.start(size, self._work)

    def _work(self, slot, _events) -> tuple[int, float]:
        failing = self._failing.setdefault(slot.hostname, threading.Event())
        while not (failing.is_set() or self._ended.is_set()):
            failing.wait(0.05)
        failed = failing.is_set() and not self._ended.is_set()
        failing.clear()
        return int(failed), time.time()

    def knows(self, *hosts: str) -> None:
        """Of those that are not blocked."""

        def known() -> set[str]:
            return self.driver._host_manager.current_hosts.available_hosts

        wait_until(lambda: known() == set(hosts), what=f"the driver to know {hosts}", timeout=DEADLINE, show=known)

    def next_world(self) -> set[str]:
        """Workers that are interrupted meet again."""
        self.driver.resume()
        return self.world

    @property
    def world(self) -> set[str]:
        return set(self.driver.host_assignments)

    def fail(self, host: str) -> None:
        """Its worker ends badly; the others come to the next rendezvous."""
        others = [threading.Thread(target=self.driver.record_ready, args=(each, 0)) for each in self.world - {host}]
        self._failing[host].set()
        for other in others:
            other.start()
        for other in others:
            other.join(DEADLINE)

    def end(self) -> None:
        self._ended.set()
        self.driver.stop()
        self.driver.get_results()


def hosts(*numbers: int) -> list[str]:
    return [f"job-worker-{number}.job.default.svc" for number in numbers]


@pytest.mark.timeout(300)
def test_rule_29_stock_horovod_is_scaled_from_two_to_four_to_one_and_takes_a_host_back_after_its_cooldown(
    place, kube, monkeypatch
):
    monkeypatch.setattr(elastic_driver, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.1)
    ahead = [0.0]
    monkeypatch.setattr(discovery, "time", SimpleNamespace(time=lambda: time.time() + ahead[0]))
    kube.put("nodes", bodies.node("n-0"))
    kube.put("mpijobs", bodies.mpi_job("job", workers=2))
    script = place.directory / "discover_hosts.sh"
    options = ["--source", "kubernetes", "--kubeconfig", kube.kubeconfig(place.directory / "config"), "--job", "job"]
    options += ["--admission-probe", "none", "--settle", "0.1", "--hosts-file", place.hosts, "--script", script]
    with Workers(kube, "job", nodes=["n-0"]) as operator, place.serve_here(options):
        wait_until(lambda: (place.published() or "").count("\n") == 2, what="two hosts", timeout=DEADLINE)
        job = Job(str(script))
        try:
            job.start(2)
            assert job.world == set(hosts(0, 1))
            operator.scale(4)
            job.knows(*hosts(0, 1, 2, 3))
            assert job.next_world() == set(hosts(0, 1, 2, 3))
            (failed,) = hosts(3)
            job.fail(failed)
            assert job.world == set(hosts(0, 1, 2))
            assert failed in place.published()  # it is Horovod who blocked it, for a time
            ahead[0] = COOLDOWN[1]
            job.knows(*hosts(0, 1, 2, 3))
            assert job.next_world() == set(hosts(0, 1, 2, 3))
            operator.scale(1)
            job.knows(*hosts(0))
            assert job.next_world() == set(hosts(0))
        finally:
            job.end()
