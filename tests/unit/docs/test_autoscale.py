"""The examples of docs/autoscale.md are YAML, and name metrics that a job has."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from hvd_elastic_ext.install.manifest import autoscaler
from hvd_elastic_ext.launcher.exports.prometheus import PREFIX, RESERVED_NAMES
from hvd_elastic_ext.launcher.scaling.policies import TOTALS
from tests.support.manifests import problems

TEXT = (Path(__file__).parents[3] / "docs" / "autoscale.md").read_text(encoding="utf-8")
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]


def test_examples_name_metrics_that_a_job_has() -> None:
    adapter, keda = EXAMPLES
    (rule,) = adapter["externalRules"]
    found = re.search(rf"{PREFIX}\(([a-z_|]+)\)", rule["seriesQuery"])
    assert found is not None
    assert set(found[1].split("|")) == {*TOTALS, "hosts_desired"}
    query = keda["spec"]["triggers"][0]["metadata"]["query"]
    assert re.findall(rf"{PREFIX}(\w+)", query) == ["hosts_desired"]
    assert "hosts_desired" in RESERVED_NAMES
    assert keda["spec"]["scaleTargetRef"]["name"] == keda["metadata"]["name"]


def test_the_object_for_keda_is_valid_to_its_operator() -> None:
    keda = EXAMPLES[1]
    assert problems(keda) == []
    assert problems({**keda, "spec": {**keda["spec"], "maxReplicas": 16}}) != []


def test_the_rule_for_the_adapter_makes_a_query_of_what_an_autoscaler_asks_for() -> None:
    """As the adapter fills its template (``BuildExternal`` in its ``pkg/naming/metrics_query.go``)."""
    (rule,) = EXAMPLES[0]["externalRules"]
    assert rule.keys() <= {"seriesQuery", "seriesFilters", "resources", "name", "metricsQuery"}
    body = autoscaler("statefulset/digits", "threshold:queue=100", least=2, most=16)
    (external,) = [metric["external"]["metric"] for metric in body["spec"]["metrics"]]
    labels = {**external["selector"]["matchLabels"], "namespace": "team"}
    filled = {
        "<<.Series>>": external["name"],
        "<<.LabelMatchers>>": ",".join(f'{name}="{value}"' for name, value in labels.items()),
        "<<.GroupBy>>": "",  # as it is for external metrics
    }
    query = rule["metricsQuery"]
    for place, text in filled.items():
        query = query.replace(place, text)
    assert query == 'max(hvd_elastic_queue{job="digits",namespace="team"}) by ()'
