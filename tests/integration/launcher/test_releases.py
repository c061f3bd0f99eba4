"""Workers that are let go and had back, with an API server and an operator that does as the real one: in real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvd_elastic_ext.core.clock import SystemClock
from hvd_elastic_ext.core.hosts import HostSet
from hvd_elastic_ext.launcher.sleep import releaser
from hvd_elastic_ext.launcher.sleep.release_policy import ReleaseLimits
from hvd_elastic_ext.launcher.sleep.releaser import Need, PodReleases
from hvd_elastic_ext.launcher.sleep.replica_requests import BEFORE, workload
from tests.support import rights
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube as kube  # a fixture
from tests.support.kube.server import KubeServer
from tests.support.kube.workers import Workers
from tests.support.waiting import wait_until

SECONDS = 100
HOSTS = HostSet.of({"digits-worker-0": 2})


class Operator:
    """Makes workers of the job ``digits``."""

    def __init__(self, kube: KubeServer) -> None:
        self.kube = kube
        kube.put("nodes", bodies.node("n"))
        kube.put("mpijobs", bodies.mpi_job("digits", workers=4, slots=2))
        self.workers = Workers(kube, "digits", nodes=["n"])

    @property
    def asked(self) -> int:
        replicas: int = self.kube.get("mpijobs", "digits")["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        return replicas

    @property
    def note(self) -> str | None:
        found: str | None = self.kube.get("mpijobs", "digits")["metadata"].get("annotations", {}).get(BEFORE)
        return found

    def ready(self) -> list[str]:
        return sorted(
            pod["metadata"]["name"]
            for pod in self.kube.all("pods")
            if {"type": "Ready", "status": "True"}.items() <= _condition(pod).items()
        )


def _condition(pod: dict[str, Any]) -> dict[str, Any]:
    return next((each for each in pod["status"]["conditions"] if each["type"] == "Ready"), {})


@pytest.fixture
def operator(kube: KubeServer) -> Iterator[Operator]:
    made = Operator(kube)
    with made.workers:
        wait_until(lambda: len(made.ready()) == 4, what="four workers")
        yield made


Make = Callable[..., PodReleases]


@pytest.fixture
def make(kube: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Of a launcher that may do what the manifest grants it and no more."""
    kube.put("roles", {"metadata": {"name": "r"}, "rules": rights.rules(rights.SLEEP["mpi"])})
    subjects = [{"kind": "ServiceAccount", "name": "launcher"}]
    kube.put(
        "rolebindings", {"metadata": {"name": "r"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects}
    )
    config = kube.kubeconfig(tmp_path / "kubeconfig", token=kube.access.issue_for("default", "launcher"))
    monkeypatch.setenv("KUBECONFIG", str(config))

    def make(*, every: float, suspends: bool = False) -> PodReleases:
        return releaser.found(
            ReleaseLimits(workload("mpijob/digits"), every, 60.0, suspends),
            Need(start=8, least=4),
            tmp_path,
            record=lambda *_, **__: None,
            clock=SystemClock(),
        )

    return make


async def until(condition: Callable[[], Any], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what=what, timeout=SECONDS)


async def test_a_sleeping_job_releases_all_pods_and_has_them_again_when_it_wakes(
    operator: Operator, make: Make
) -> None:
    sleeping = make(every=3.0)
    await sleeping.began()
    await sleeping.asleep(HOSTS)
    await until(lambda: not operator.kube.all("pods"), "no pod is left")
    assert (operator.asked, operator.note) == (0, "4")
    await until(lambda: len(operator.ready()) == 2, "as many as it needs to go on")
    await sleeping.look(enough=True)
    await sleeping.woke()
    await until(lambda: len(operator.ready()) == 4, "as many as before")
    await until(lambda: operator.note is None, "nothing is remembered")
    await sleeping.launcher_ends(code=0)


async def test_a_job_suspended_at_the_end_stays_suspended_with_all_its_workers(operator: Operator, make: Make) -> None:
    sleeping = make(every=SECONDS, suspends=True)
    await sleeping.asleep(HOSTS)
    await until(lambda: not operator.kube.all("pods"), "no pod is left")
    await sleeping.launcher_ends(code=75)
    spec = operator.kube.get("mpijobs", "digits")["spec"]
    assert spec["runPolicy"] == {"suspend": True}
    assert (operator.asked, operator.note) == (4, None)
    assert not operator.kube.all("pods")
