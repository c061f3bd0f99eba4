"""A HorizontalPodAutoscaler for an elastic job."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.install import manifest
from hvd_elastic_ext.install.manifest import autoscaler
from tests.support.manifests import problems


def made(**changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"target": "statefulset/digits", "policy": "threshold:cpu=0.8", "least": 2, "most": 16}
    return autoscaler(**{**given, **changes})


def test_it_scales_pods_between_the_bounds_of_processes() -> None:
    spec = made(least=3, most=17, slots=4)["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "digits"}


def test_cpu_and_memory_are_resources_and_all_else_is_external() -> None:
    cpu, queue, loss = made(policy="threshold:cpu=0.4..0.8,queue=100,loss=0.5")["spec"]["metrics"]
    assert cpu == {
        "type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}},
    }
    assert queue["external"] == {
        "metric": {"name": "hvd_elastic_queue", "selector": {"matchLabels": {"job": "digits"}}},
        "target": {"type": "AverageValue", "averageValue": "100"},
    }
    assert loss["external"]["target"] == {"type": "Value", "value": "500m"}


@pytest.mark.parametrize(
    ("changes", "job"),
    [
        ({"target": "statefulset/digits-worker"}, "digits"),
        ({"target": "statefulset/digits"}, "digits"),
        ({"target": "pytorchjob/digits"}, "digits"),
        ({"target": "deployment/some-pods", "job": "digits"}, "digits"),
    ],
)
def test_metrics_are_those_of_the_job_whatever_its_workers_are_called(changes: dict[str, Any], job: str) -> None:
    (metric,) = made(policy="threshold:queue=100", **changes)["spec"]["metrics"]
    assert metric["external"]["metric"]["selector"]["matchLabels"] == {"job": job}


def test_windows_are_those_of_the_policy_and_one_pod_goes_at_a_time() -> None:
    behavior = made(policy="threshold:cpu=0.8,up=60,down=600")["spec"]["behavior"]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 60
    assert behavior["scaleDown"] == {
        "stabilizationWindowSeconds": 600,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 600}],
    }


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"target": "mpijob/digits"}, "needs a kind with a scale subresource and a selector"),
        ({"target": "statefulset"}, "write KIND/NAME"),
        ({"target": "statefulset/Digits"}, "write KIND/NAME"),
        ({"policy": "efficiency"}, "an autoscaler looks at signals"),
        ({"policy": "threshold"}, "no signal is given"),
        ({"least": 5, "most": 7, "slots": 4}, "no number of pods fits"),
        ({"uid": "digits"}, "write the metadata.uid of statefulset/digits"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        made(**changes)


def test_it_goes_with_the_object_that_owns_it() -> None:
    uid = "11111111-2222-3333-4444-555555555555"
    found = made(uid=uid)
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "digits", "uid": uid}
    assert found["metadata"] == {"name": "digits", "ownerReferences": [owner]}
    assert problems(found) == []


def test_the_command_prints_it_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    words = "hpa --for pytorchjob/digits --autoscale threshold:queue=10 --min-np 2 --max-np 16 -n team"
    assert manifest.main(words.split()) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert found == made(target="pytorchjob/digits", policy="threshold:queue=10", namespace="team")
    assert list(found) == ["apiVersion", "kind", "metadata", "spec"]


def test_the_command_names_what_is_missing() -> None:
    with pytest.raises(UsageError, match="hpa needs --for, --max-np; such as"):
        manifest.main(["hpa", "--autoscale", "threshold:cpu=0.8"])
