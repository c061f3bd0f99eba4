"""The examples of docs/autoscale.md are YAML, and name metrics that a job has."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from hvd_elastic_ext.autoscale.policies import TOTALS
from hvd_elastic_ext.launcher.metrics.figures import OWN, PREFIX

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
    assert "hosts_desired" in OWN
    assert keda["spec"]["scaleTargetRef"]["name"] == keda["metadata"]["name"]
