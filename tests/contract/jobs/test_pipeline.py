"""A step of a Kubeflow pipeline: on our server; the component with kfp's own compiler where that is installed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.jobs import pipeline
from tests.support.kube import bodies
from tests.support.kube.fixtures import kube
from tests.support.kube.server import KubeServer

__all__ = ["kube"]

KFP = "HVD_TEST_KFP"
LINES = (
    "hvd-elastic: world 1: size 2 (a:1, b:1); start",
    "[0]<stdout>:hvd-elastic: world 9: size 9 (none)",
    "hvd-elastic: world 2: size 1 (a:1); hosts removed: -b; downtime 0.5 s; steps lost: 3",
    "hvd-elastic: world 3: size 2 (a:1, b:1); hosts added: +b; downtime 0.3 s; steps lost: 0",
)


def words(directory: Path, kube: KubeServer, command: str) -> list[str]:
    kubeconfig = kube.kubeconfig(directory / "config")
    job = ["--name", "digits", "--image", "example.org/train:1", "--command", command, "--options", "--workers 2"]
    outputs = ["--metrics", str(directory / "out/metrics"), "--checkpoint", str(directory / "out/checkpoint")]
    return [*job, *outputs, "--kubeconfig", str(kubeconfig)]


@pytest.mark.parametrize(("state", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_a_step_ends_as_its_job_and_says_what_came_of_it(
    kube: KubeServer, tmp_path: Path, state: str, code: int
) -> None:
    def end(_: float) -> None:
        labels = {"hvd-elastic-job": "digits", "hvd-elastic-role": "launcher"}
        kube.put("pods", bodies.pod("digits-launcher-x", labels=labels, phase=state))
        kube.logs.write("digits-launcher-x", *LINES)
        kube.change("mpijobs", "digits", {"status": {"conditions": [bodies.condition(state)]}})

    given = words(tmp_path, kube, "hvd-elastic run --checkpoint-dir s3://bucket/ck python train.py")
    assert pipeline.main(given, sleep=end) == code
    metrics = json.loads((tmp_path / "out/metrics").read_text())
    assert metrics.pop("seconds") >= 0
    assert metrics == {"state": state, "worlds": 3, "size": 2, "downtime_s": 0.8, "steps_lost": 3}
    assert (tmp_path / "out/checkpoint").read_text() == "s3://bucket/ck"
    assert kube.get("mpijobs", "digits")["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2


def test_a_job_that_cannot_be_submitted_ends_the_step(kube: KubeServer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean --settle"):
        pipeline.main(words(tmp_path, kube, "hvd-elastic run --setle 3 train.py"))
    assert kube.all("mpijobs") == []


def test_every_input_and_output_of_the_component_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["--component", "example.org/hvd-elastic:1"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    container = found["implementation"]["container"]
    used = [next(iter(each.values())) for each in container["args"] if isinstance(each, dict)]
    assert used == [each["name"] for each in (*found["inputs"], *found["outputs"])]
    assert container["image"] == "example.org/hvd-elastic:1"
    parsed = pipeline._parser().parse_args([each if isinstance(each, str) else "x" for each in container["args"]])
    assert (parsed.name, parsed.metrics) == ("x", Path("x"))


COMPILES = """
import sys, kfp
text, to = sys.stdin.read(), sys.argv[1]
loaded = kfp.components.load_component_from_text(text)
@kfp.dsl.pipeline(name="elastic")
def elastic():
    loaded(name="digits", image="example.org/train:1", command="python train.py")
kfp.compiler.Compiler().compile(elastic, to)
"""


def test_kfp_compiles_a_pipeline_with_the_component(tmp_path: Path) -> None:
    python = os.environ.get(KFP)
    if not python:
        pytest.skip(
            f"needs kfp: set {KFP} to a Python with kfp 2, in its own environment: kfp needs kubernetes<31"
        )
    text = yaml.safe_dump(pipeline.component("example.org/hvd-elastic:1"))
    to = tmp_path / "pipeline.yaml"
    ended = subprocess.run(
        [python, "-I", "-c", COMPILES, str(to)], input=text, text=True, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    whole = next(yaml.safe_load_all(to.read_text()))
    (made,) = whole["components"].values()
    assert set(made["inputDefinitions"]["parameters"]) == {"name", "image", "command", "options"}
    assert set(made["outputDefinitions"]["parameters"]) == {"metrics", "checkpoint"}
