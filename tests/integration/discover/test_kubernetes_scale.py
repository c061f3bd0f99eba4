"""Many pods, and many changes: how long, how much memory. `make bench` has the figures; here are bounds."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.waiting import wait_until

__all__ = ["kube"]

pytestmark = [pytest.mark.soak, pytest.mark.alone, pytest.mark.timeout(400)]

PODS = 10_000
NODES = 1_250
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


def test_ten_thousand_pods_and_a_thousand_changes_a_second(place, crowd):
    """§7-15"""
    kubeconfig = crowd.kubeconfig(place.directory / "kubeconfig")
    source = ["--source", "kubernetes", "--job", "job", "--kubeconfig", kubeconfig, "--admission-probe", "none"]
    with place.serve_as([*source, "--hosts-file", place.hosts, "--settle", "0"]) as daemon:
        wait_until(lambda: crowd.counts.of("list", "pods"), what="the first request", timeout=60)
        begun = time.monotonic()
        wait_until(place.published, what="the file", timeout=60)
        assert time.monotonic() - begun < 5.0
        assert place.published().count("\n") == PODS
        wait_until(lambda: crowd.watches("pods"), what="the watch", timeout=60)
        lags = []
        begun, changes = time.monotonic(), 0
        while (now := time.monotonic()) - begun < 60.0:
            if changes < (now - begun) * 1000:
                crowd.change("pods", f"p{changes % 5000}", {"metadata": {"annotations": {"n": str(changes)}}})
                changes += 1
                if changes % 10_000 == 0:
                    lags.append(removal(place, crowd, f"p{5000 + changes // 10_000}"))
            else:
                time.sleep(0.001)
        assert changes >= 30_000, "this machine is too slow to make changes, so this says nothing of the daemon"
        assert max(lags) < 1.0, lags
        assert peak(daemon.pid) < MEMORY


def removal(place, server, name: str) -> float:
    begun = time.monotonic()
    server.delete("pods", name, grace=60)
    wait_until(lambda: f"{name}." not in place.published(), what=f"{name} to go", timeout=60, interval=0.005)
    return time.monotonic() - begun
