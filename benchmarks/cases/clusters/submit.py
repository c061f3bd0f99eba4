"""How long a job takes from ``hvd-elastic submit`` to its first step, beside ``kubectl apply`` of the same objects.

The API server is the one of the tests, in a process of its own. This module acts as the operator: when the MPIJob
exists, it starts the job on this machine. kubectl uses TLS, because it sends its token only over TLS. Its discovery
cache is filled before, and it checks no fields (``--validate=false``), because that server has no OpenAPI. Without
kubectl, the official client sends the objects of a file one by one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks import jobs
from benchmarks.cases.daemon.cluster import Cluster, cluster
from benchmarks.cases.resize import first_step
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values
from tests.support.kubectl import kubectl

SUBMIT: Final = "hvd-elastic submit to first step"
KUBECTL: Final = kubectl()
RAW: Final = "kubectl apply of the same objects" if KUBECTL else "the same objects sent by the official client"
BAR: Final = 1.5
DEADLINE_S: Final = 120.0
ELASTIC: Final = (sys.executable, "-m", "hvd_elastic_ext.cli")


def measure(trial: Trial) -> Values:
    """Measure one start of each, in alternating order."""
    with cluster(trial, 0, tls=KUBECTL is not None) as at:
        plain = trial.folder / "objects.json"
        plain.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered("raw")}))
        submit = [*ELASTIC, *words("submitted"), "--kubeconfig", str(at.kubeconfig), *COMMAND]
        raw = [sys.executable, "-m", "benchmarks.scripts.create", str(at.kubeconfig), str(plain)]
        if KUBECTL is not None:
            raw = apply(KUBECTL, at, plain)
        order: list[tuple[str, str, Sequence[str]]] = [(SUBMIT, "submitted", submit), (RAW, "raw", raw)]
        if trial.number % 2:
            order.reverse()
        return {quantity: [started(trial, at, name, command)] for quantity, name, command in order}


COMMAND: Final = ("--", "python", "/train.py")


def words(name: str) -> list[str]:
    """Return the words of ``submit``."""
    return ["submit", name, "--image", "example.org/train:1", "--workers", "2"]


def apply(program: Path, at: Cluster, file: Path) -> list[str]:
    """Return the command that applies the objects of ``file``. Like a usual user's kubectl, it has used this server
    before."""
    asks = [str(program), f"--kubeconfig={at.kubeconfig}", f"--cache-dir={at.folder / 'cache'}"]
    ended = subprocess.run([*asks, "get", "mpijobs"], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BenchmarkError(f"kubectl get ends with {ended.returncode}: {ended.stderr.strip()[:300]}")
    return [*asks, "apply", "--validate=false", "-f", str(file)]


def rendered(name: str) -> list[object]:
    """Return the objects of a job."""
    how = ["--kind", "mpijob", "--dry-run=client", "-o", "json"]
    ended = subprocess.run([*ELASTIC, *words(name), *how, *COMMAND], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BenchmarkError(f"submit --dry-run ends with {ended.returncode}: {ended.stderr.strip()[:300]}")
    items: list[object] = json.loads(ended.stdout)["items"]
    return items


def started(trial: Trial, at: Cluster, name: str, command: Sequence[str]) -> Timing:
    """Create the job; once the server has it, start the training. The time begins before the first process."""
    makes, trains = trial.folder / f"{name}-makes", trial.folder / f"{name}-trains"
    for folder in (makes, trains):
        folder.mkdir()
    maker, job = jobs.Job(trial.side, makes), jobs.Job(trial.side, trains)
    script = [sys.executable, str(first_step.SCRIPT), "ours", str(job.stamps_file)]
    try:
        at.tell("appears", name)
        since = time.monotonic()
        maker.launch(command)
        at.done("appears", name)
        job.launch([*first_step.launcher("ours", trains.name), *script])
        first = lambda: first_step.both(job.stamps())  # noqa: E731
        return job.time_until("first steps", first, since=since, deadline=DEADLINE_S)
    finally:
        maker.end()
        job.end()


CASE: Final = Case(
    name="submit",
    about="a job on a cluster is submitted, and starts on this machine",
    figures=(Figure(SUBMIT, floor=RAW, bar_floor=BAR), Figure(RAW)),
    measure=measure,
    sides=("ours",),
)
