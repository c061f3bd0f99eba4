"""Many pods, and many changes: nothing is lost, and memory has a bound. `make bench` (`cluster-many`) has the times."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.waiting import wait_until

__all__ = ["kube"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(400)]

PODS = 10_000
NODES = 1_250
CHANGES = 20_000
MEMORY = 130 << 20
"""Bytes."""

LABELS = bodies.mpi_worker_labels("job")


def peak(pid: int) -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


@pytest.fixture
def crowd(kube):
    for number in range(NODES):
        kube.put("nodes", bodies.node(f"node-{number}"))
    for number in range(PODS):
        kube.put("pods", bodies.large_pod(f"p{number}", node=f"node-{number % NODES}", labels=LABELS))
    return kube


def test_rule_15_ten_thousand_pods_and_a_thousand_changes_a_second(place, crowd):
    kubeconfig = crowd.kubeconfig(place.directory / "kubeconfig")
    source = ["--source", "kubernetes", "--job", "job", "--kubeconfig", kubeconfig, "--admission-probe", "none"]
    with place.serve_as([*source, "--hosts-file", place.hosts, "--settle", "0"]) as daemon:
        wait_until(lambda: crowd.counts.of("list", "pods"), what="the first request", timeout=60)
        wait_until(place.published, what="the file", timeout=60)
        assert place.published().count("\n") == PODS
        wait_until(lambda: crowd.watches("pods"), what="the watch", timeout=60)
        begun, changes = time.monotonic(), 0
        while changes < CHANGES:
            if changes < (time.monotonic() - begun) * 1000:
                crowd.change("pods", f"p{changes % 5000}", {"metadata": {"annotations": {"n": str(changes)}}})
                changes += 1
                if changes % 5000 == 0:
                    remove(place, crowd, f"p{5000 + changes // 5000}")
            else:
                time.sleep(0.001)
        assert peak(daemon.pid) < MEMORY


def remove(place, server, name: str) -> None:
    server.delete("pods", name, grace=600)
    wait_until(lambda: f"{name}." not in place.published(), what=f"{name} to go", timeout=60)
