"""``docs/submit.md`` as a newcomer reads it: its lines, on a cluster that really starts what is submitted.

Only what the page leaves to its reader is put in: a registry, an image, a repository.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from hvd_elastic_ext.io.kube.access import Access
from hvd_elastic_ext.jobs import pipeline
from hvd_elastic_ext.jobs.cluster.api import Cluster
from tests.contract.comms.conftest import without_mpi
from tests.contract.jobs.test_pipeline import KFP
from tests.e2e.kubernetes.newcomer import Newcomer, kube, newcomer
from tests.support.kube.one_machine import ROOT

__all__ = ["kube", "newcomer"]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

PAGE = (ROOT / "docs" / "submit.md").read_text()
BLOCKS = re.findall(r"(?:^    .*\n)+", PAGE, re.MULTILINE)
LINES = [line.strip() for block in BLOCKS for line in re.sub(r"\\\n\s+", "", block).splitlines()]


def line_with(*words: str) -> str:
    """The one line of the page with these words."""
    (found,) = (each for each in LINES if all(word in each for word in words))
    return found


def test_the_first_line_of_the_page_trains_a_model_and_every_command_shows_it(newcomer: Newcomer) -> None:
    said = newcomer.types("hvd-elastic preflight")
    assert "PROBLEM" not in said
    said = newcomer.types(LINES[0])
    assert "mpijob.kubeflow.org/digits created" in said
    assert said.splitlines()[-1] == "its output: hvd-elastic logs -f digits -n default"
    newcomer.waits("digits", "running")
    assert "digits" in newcomer.types("hvd-elastic list")
    assert json.loads(newcomer.types("hvd-elastic get digits -o json"))["asked"] == 2
    assert "digits-launcher-1" in newcomer.types("hvd-elastic get digits")
    assert newcomer.types("hvd-elastic attach digits -- echo hello") == "hello\n"
    mine = {"hvd-elastic-job": "digits"}
    used = [{"name": "worker", "usage": {"cpu": "500000000n", "memory": "1048576Ki"}}]
    measured = {"metadata": {"name": "digits-worker-0", "labels": mine}, "containers": used}
    newcomer.kube.put("pods.v1beta1.metrics.k8s.io", measured)
    assert "digits-worker-0" in newcomer.types("hvd-elastic top digits")
    newcomer.waits_for_world("digits", 2)
    assert "0 → 2" in newcomer.types("hvd-elastic events digits -n default")
    output = newcomer.types("hvd-elastic logs -f digits")
    accuracy = re.search(r"test accuracy (0\.\d+)", output)
    assert accuracy is not None, output
    assert float(accuracy[1]) > 0.9
    assert newcomer.types("hvd-elastic logs digits --rank 0 --tail 3")
    newcomer.waits("digits", "succeeded")
    assert newcomer.types("hvd-elastic delete digits") == "mpijobs/digits deleted\n"
    newcomer.waits("digits", "deleted")


def test_a_job_with_a_claim_is_scaled_suspended_and_goes_on_where_it_was(newcomer: Newcomer, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "01-digits" / "train.py", "train.py")
    hurry = tmp_path / "hurry"
    line = f"{line_with('--checkpoint-dir /ck')} --step-delay 0.05 --hurry {hurry}"
    newcomer.types(line.replace("submit digits", "submit digits --workers 2"))
    newcomer.waits_for_world("digits", 2)
    assert newcomer.types("hvd-elastic scale digits 3 -n default") == "digits scaled to 3\n"
    newcomer.waits_for_world("digits", 3)
    newcomer.types("hvd-elastic suspend digits")
    newcomer.waits("digits", "suspended")
    newcomer.waits_for_no_pods()
    assert list(newcomer.claims.claim("ckpt").iterdir())
    newcomer.types("hvd-elastic resume digits")
    newcomer.waits_for_world("digits", 3)
    hurry.touch()
    newcomer.waits("digits", "succeeded")
    output = newcomer.types("hvd-elastic logs digits")
    assert re.search(r"restored|continues|checkpoint", output), output
    assert "test accuracy" in output


@pytest.mark.parametrize("large", [False, True])
def test_a_folder_goes_along_however_large_it_is(newcomer: Newcomer, large: bool) -> None:
    if large:
        Path("data").write_bytes(os.urandom(2_000_000))
    said = newcomer.types(line_with("--sync . -- "))
    assert ("bytes of code sent" in said) == large
    newcomer.waits("digits", "succeeded")
    assert "done 30 " in newcomer.types("hvd-elastic logs digits")


def test_a_folder_on_a_claim_is_the_code(newcomer: Newcomer) -> None:
    there = newcomer.claims.claim("sources") / "digits"
    there.mkdir()
    Path("train.py").rename(there / "train.py")
    newcomer.types(line_with("--sync pvc:"))
    newcomer.waits("digits", "succeeded")
    assert "done 30 " in newcomer.types("hvd-elastic logs digits")


def test_a_commit_of_a_repository_is_the_code(newcomer: Newcomer, tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "-b", "main"], ["add", "train.py"], [*who, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", ".", str(served / "REPOSITORY")], check=True)
    subprocess.run(["git", "-C", str(served / "REPOSITORY"), "update-server-info"], check=True)
    shutil.rmtree(".git")
    Path("train.py").unlink()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            at = f"http://127.0.0.1:{server.server_address[1]}/"
            newcomer.types(line_with("git+https").replace("https://HOST/", at))
            newcomer.waits("digits", "succeeded")
        finally:
            server.shutdown()
            thread.join()
    assert "done 30 " in newcomer.types("hvd-elastic logs digits")


def test_arenas_line_runs_with_nothing_changed_but_the_image(newcomer: Newcomer) -> None:
    line = line_with("etjob", "--max-wait-time=600")
    said = newcomer.types(line.replace("--toleration", "--launcher-selector=kind=stable --toleration"))
    assert "trainingjob.kai.alibabacloud.com/elastic created" in said
    newcomer.waits_for_world("elastic", 8)
    newcomer.waits("elastic", "succeeded")
    assert "done 30 " in newcomer.types("hvd-elastic logs elastic")


STEP = """\
import json, os, sys, kfp
from kfp import local
from kfp.local import subprocess_task_handler
os.environ["PYTHONPATH"] = sys.argv[5]  # the step's: a folder there is named as a package that kfp needs
# Its local runner without Docker refuses commands of images; all else of a step is as kfp does it: inputs, places of
# outputs, what is read there.
subprocess_task_handler.SubprocessTaskHandler.validate_not_container_component = lambda self, command: None
local.init(local.SubprocessRunner(use_venv=False), pipeline_root=sys.argv[1])
step = kfp.components.load_component_from_text(sys.stdin.read())
done = step(name="digits", image="example.org/train:1", command=sys.argv[2], options=sys.argv[3])
with open(sys.argv[4], "w") as file:
    json.dump(done.outputs, file)
"""


def test_a_step_of_a_pipeline_trains_by_kfps_local_runner(newcomer: Newcomer, tmp_path: Path) -> None:
    kfp = os.environ.get(KFP)
    if not kfp:
        pytest.skip(
            f"needs kfp: set {KFP} to a Python with kfp 2 and docker, in its own environment: kfp needs kubernetes<31"
        )
    found = tmp_path / "outputs"
    command = "hvd-elastic run --checkpoint-dir /ck python train.py"
    options = "--sync . --workers 2 --data ckpt:/ck"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [kfp, "-c", STEP, str(tmp_path / "root"), command, options, str(found), str(ROOT)],
        input=yaml.safe_dump(pipeline.component("example.org/hvd-elastic:1")),
        text=True,
        capture_output=True,
        check=False,
        env=environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outputs = json.loads(found.read_text())
    assert outputs["checkpoint"] == "/ck"
    assert (outputs["metrics"]["state"], outputs["metrics"]["size"]) == ("Succeeded", 2)
    assert list(newcomer.claims.claim("ckpt").iterdir())


OLD = """\
apiVersion: kubeflow.org/v1alpha2
kind: MPIJob
metadata: {name: old}
spec:
  slotsPerWorker: 1
  cleanPodPolicy: Running
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      template:
        spec:
          containers:
          - name: mpi
            image: example.org/train:1
            command: [mpirun, -np, "2", python]
            args: [/opt/hvd/share/hvd-elastic-ext/examples/01-digits/train.py, --epochs, "2"]
    Worker:
      replicas: 2
      template:
        spec: {containers: [{name: mpi, image: example.org/train:1}]}
"""


def test_a_converted_mpijob_of_v1alpha2_trains(newcomer: Newcomer) -> None:
    if (why := without_mpi()) is not None:
        pytest.skip(why)
    Path("old.yaml").write_text(OLD)
    Path("new.yaml").write_text(newcomer.types("hvd-elastic convert old.yaml"))
    ((new,),) = [list(yaml.safe_load_all(Path("new.yaml").read_text()))]
    Cluster(Access(os.environ["KUBECONFIG"])).create(new)
    newcomer.waits("old", "succeeded")
    assert "test accuracy" in "".join(newcomer.kube.logs.of("old-launcher-1"))
