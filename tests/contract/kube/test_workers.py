"""The stand-in for the operator, which keeps a job's workers in our server as the real one would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.kube.conftest import Space, eventually
from tests.support.kube import bodies, cluster_events
from tests.support.kube.server import KubeServer
from tests.support.kube.workers import Workers


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def workers(fake: KubeServer, log: list[str]) -> Iterator[Workers]:
    for number in range(2):
        fake.put("nodes", bodies.node(f"n-{number}"))
    fake.put("mpijobs", bodies.mpi_job("j", workers=2))

    def note(what: str) -> Callable[[dict[str, Any]], None]:
        return lambda pod: log.append(f"{what} {pod['metadata']['name']}")

    with Workers(fake, "j", nodes=["n-0", "n-1"], start=note("start"), stop=note("stop")) as found:
        yield found


def ready(kube: KubeServer) -> list[str]:
    found = []
    for pod in kube.all("pods"):
        conditions = {each["type"]: each["status"] for each in pod["status"]["conditions"]}
        if conditions["Ready"] == "True" and "deletionTimestamp" not in pod["metadata"]:
            found.append(pod["metadata"]["name"])
    return found


def test_a_job_gets_its_workers_and_each_is_started_once(fake: KubeServer, workers: Workers, log: list[str]) -> None:
    eventually(lambda: ready(fake) == ["j-worker-0", "j-worker-1"], "two workers")

    assert log == ["start j-worker-0", "start j-worker-1"]
    pod = fake.get("pods", "j-worker-0")
    assert pod["metadata"]["ownerReferences"][0]["uid"] == fake.get("mpijobs", "j")["metadata"]["uid"]
    assert {fake.get("pods", f"j-worker-{each}")["spec"]["nodeName"] for each in range(2)} == {"n-0", "n-1"}


def test_scaling_takes_the_highest_numbers(fake: KubeServer, workers: Workers, log: list[str]) -> None:
    eventually(lambda: len(ready(fake)) == 2, "two workers")
    workers.scale(4)
    eventually(lambda: len(ready(fake)) == 4, "four workers")
    workers.scale(1)
    eventually(lambda: [each["metadata"]["name"] for each in fake.all("pods")] == ["j-worker-0"], "one worker")

    assert sorted(log[4:]) == ["stop j-worker-1", "stop j-worker-2", "stop j-worker-3"]


def test_an_evicted_pod_comes_back_under_its_name_once_it_is_gone(
    fake: KubeServer, inside: Space, workers: Workers, log: list[str]
) -> None:
    eventually(lambda: len(ready(fake)) == 2, "two workers")
    old = fake.get("pods", "j-worker-0")["metadata"]["uid"]
    watch = inside.watch(resourceVersion=inside.version(), fieldSelector="metadata.name=j-worker-0")
    inside.api.done("POST", inside.path("pods", "j-worker-0", "eviction"), {"metadata": {"name": "j-worker-0"}})
    seen = [watch.next()]
    while seen[-1][0] != "ADDED":
        seen.append(watch.next())

    kinds = [kind for kind, _ in seen]
    assert kinds.index("DELETED") == len(kinds) - 2
    assert seen[-1][1]["metadata"]["uid"] != old
    eventually(lambda: len(ready(fake)) == 2, "two workers again")
    assert log[2:] == ["stop j-worker-0", "start j-worker-0"]


def test_a_failed_pod_is_not_made_again_until_somebody_deletes_it(fake: KubeServer, workers: Workers) -> None:
    eventually(lambda: len(ready(fake)) == 2, "two workers")
    cluster_events.fail(fake, "j-worker-1", reason="Evicted")
    workers.scale(3)
    eventually(lambda: ready(fake) == ["j-worker-0", "j-worker-2"], "the third worker")
    assert fake.get("pods", "j-worker-1")["status"]["phase"] == "Failed"

    fake.delete("pods", "j-worker-1")
    eventually(lambda: len(ready(fake)) == 3, "three workers")


def test_a_job_that_is_to_have_no_workers_is_left_as_it_is(fake: KubeServer, workers: Workers) -> None:
    eventually(lambda: len(ready(fake)) == 2, "two workers")
    workers.scale(0)
    fake.delete("pods", "j-worker-1")
    eventually(lambda: [each["metadata"]["name"] for each in fake.all("pods")] == ["j-worker-0"], "one is gone")
    workers.scale(2)
    eventually(lambda: len(ready(fake)) == 2, "two workers again")


def test_a_suspended_job_has_no_workers(fake: KubeServer, workers: Workers) -> None:
    eventually(lambda: len(ready(fake)) == 2, "two workers")
    fake.change("mpijobs", "j", {"spec": {"runPolicy": {"suspend": True}}})
    eventually(lambda: not fake.all("pods"), "no worker")
    fake.change("mpijobs", "j", {"spec": {"runPolicy": {"suspend": False}}})
    eventually(lambda: len(ready(fake)) == 2, "two workers again")
