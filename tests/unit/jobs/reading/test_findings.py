"""Whether nodes, quotas and claims leave room for a job."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_elastic_ext.jobs.reading import findings
from hvd_elastic_ext.jobs.rendering.objects import templates
from hvd_elastic_ext.jobs.spec.job import Toleration
from tests.support.jobs import example, rendered
from tests.support.kube import bodies


def worker(**others: Any) -> dict[str, Any]:
    job = example("mpijob", gpus=2, cpu="4", memory="16Gi", **others)
    return next(each for body in rendered(job).objects for role, each in templates(body) if role == "worker")


def node(name: str, *, gpus: int = 4, labels: dict[str, str] | None = None, taints: Any = ()) -> dict[str, Any]:
    body = bodies.node(name, labels=labels, taints=taints)
    body["status"]["allocatable"] = {"cpu": "15800m", "memory": "64Gi", "nvidia.com/gpu": str(gpus), "pods": "110"}
    return body


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4", 4),
        ("500m", 0.5),
        ("1.5", 1.5),
        ("16Gi", 16 * 2**30),
        ("2k", 2000),
        ("3M", 3e6),
        ("1Ki", 1024),
        ("1e3", 1000),
        ("2E", 2e18),
        ("1K", 0),
        ("", 0),
        (7, 7),
    ],
)
def test_a_quantity_is_a_number(text: object, number: float) -> None:
    assert findings.amount(text) == number


@pytest.mark.parametrize("text", ["2Gi", "16Gi", "1000Mi", "16G", "500m", "4", "1500m", "64Ki", "0", "1k", "7"])
def test_a_number_is_written_as_kubernetes_writes_it(text: str) -> None:
    assert findings.quantity(findings.amount(text)) == text


def test_what_a_worker_asks_for_is_told_in_quantities() -> None:
    small = node("a")
    small["status"]["allocatable"]["memory"] = "1Gi"
    (found,) = findings.of_nodes([small], worker(), least=1)
    assert found.found == "none has room for a worker, even empty: memory 16Gi, cpu 4, nvidia.com/gpu 2"


SPOT = bodies.taint("spot", "yes")
OTHER = Toleration("spot", "no", "", "Equal")


@pytest.mark.parametrize(
    ("nodes", "others", "levels", "said"),
    [
        ([node("a"), node("b")], {}, ["ok"], "2 of 2 take a worker; 4 workers fit"),
        ([node("a", gpus=1)], {}, ["problem"], "none has room for a worker, even empty"),
        ([node("a")], {"selector": {"pool": "x"}}, ["problem"], "none of 1 has the labels pool=x"),
        ([node("a", labels={"pool": "x"})], {"selector": {"pool": "x"}}, ["ok"], "1 of 1"),
        ([node("a", taints=[SPOT])], {}, ["problem", "warning"], "0 of 1"),
        ([node("a", taints=[SPOT]), node("b")], {}, ["ok", "warning"], "1 of 2"),
        ([node("a", taints=[SPOT])], {"tolerations": (Toleration(),)}, ["ok"], "1 of 1"),
        ([node("a", taints=[SPOT])], {"tolerations": (Toleration("spot", "yes", "", "Equal"),)}, ["ok"], "1 of 1"),
        (
            [node("a", taints=[SPOT])],
            {"tolerations": (Toleration("spot", "no", "", "Equal"),)},
            ["problem", "warning"],
            "0 of 1",
        ),
        ([node("a", taints=[bodies.taint("x", effect="PreferNoSchedule")])], {}, ["ok"], "1 of 1"),
        (None, {}, ["unknown"], "your account may not read them"),
        ([], {}, ["problem"], "there are none"),
    ],
)
def test_nodes_are_counted_that_take_a_worker(nodes: Any, others: Any, levels: list[str], said: str) -> None:
    found = findings.of_nodes(nodes, worker(**others), least=1)
    assert [each.level for each in found] == levels
    assert said in found[0].found


def test_a_taint_is_told_with_the_option_that_tolerates_it() -> None:
    taints = [SPOT, bodies.taint("node.kubernetes.io/unschedulable")]
    (_, told) = findings.of_nodes([node("a", taints=taints)], worker(), least=1)
    assert told.remedy == "--toleration spot=yes:NoSchedule"
    assert "node.kubernetes.io/unschedulable:NoSchedule (1 nodes)" in told.found


def test_too_few_places_are_a_problem() -> None:
    (found,) = findings.of_nodes([node("a")], worker(min_workers=2, workers=3), least=3)
    assert (found.level, found.remedy) == ("problem", "lower --min-workers, or add nodes")


EXAMPLE = example("mpijob", cpu="4", memory="16Gi")
"""Its launcher requests 500m and 1Gi, with a limit of 2Gi; the daemon beside it 100m and 96Mi, with one of 192Mi."""


def quota(hard: str, used: str, name: str = "requests.nvidia.com/gpu") -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "status": {"hard": {name: hard}, "used": {name: used}}}


@pytest.mark.parametrize(
    ("bodies_", "level"),
    [
        ([], "ok"),
        ([quota("16", "0")], "ok"),
        ([quota("16", "13")], "warning"),
        ([quota("16", "15")], "problem"),
        ([quota("8", "7", "limits.cpu")], "problem"),
        ([quota("1", "1", "services")], "ok"),
    ],
)
def test_a_quota_that_is_too_small_is_told(bodies_: Any, level: str) -> None:
    (found,) = findings.of_quotas(bodies_, worker(), least=1, workers=2)
    assert found.level == level


@pytest.mark.parametrize(
    ("hard", "name", "said"),
    [
        ("2", "pods", "has room for 1 workers beside the launcher"),
        ("3", "pods", "with room for 2 workers"),
        ("0", "pods", "has room for no launcher"),
        ("8500m", "requests.cpu", "has room for 1 workers beside the launcher"),  # its daemon is a container, too
        ("8600m", "requests.cpu", "with room for 2 workers"),
        ("36Gi", "limits.memory", "has room for 2 workers beside the launcher"),
    ],
)
def test_a_quota_has_room_for_the_launcher_too(hard: str, name: str, said: str) -> None:
    pods = {role: each for body in rendered(EXAMPLE).objects for role, each in templates(body)}
    sizes = {"least": 1, "workers": 3 if name == "limits.memory" else 2}
    found = findings.of_quotas([quota(hard, "0", name)], pods["worker"], launcher=pods["launcher"], **sizes)
    assert [said in each.found for each in found] == [True]
