"""How long a job takes from ``hvd-elastic submit`` to its first step, beside plain requests for the same objects.

The API server is the tests' own, in a process of its own. Its stand-in for an operator is here: when the MPIJob is
there, the job starts on this machine. ``kubectl apply`` is stood in for by the official client, which sends the objects
of a file one by one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from benchmarks import jobs
from benchmarks.cases.daemon.cluster import Cluster, cluster
from benchmarks.cases.resize import first_step
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values

SUBMIT: Final = "hvd-elastic submit to first step"
RAW: Final = "the same objects sent by the official client"
BAR: Final = 1.5
DEADLINE_S: Final = 120.0
ELASTIC: Final = (sys.executable, "-m", "hvd_elastic_ext.cli")


def measure(trial: Trial) -> Values:
    """One start of each, in turns."""
    with cluster(trial, 0) as at:
        plain = trial.folder / "objects.json"
        plain.write_text(rendered("raw"))
        submit = [*ELASTIC, *words("submitted"), "--kubeconfig", str(at.kubeconfig), *COMMAND]
        raw = [sys.executable, "-m", "benchmarks.scripts.create", str(at.kubeconfig), str(plain)]
        order: list[tuple[str, str, Sequence[str]]] = [(SUBMIT, "submitted", submit), (RAW, "raw", raw)]
        if trial.number % 2:
            order.reverse()
        return {quantity: [started(trial, at, name, command)] for quantity, name, command in order}


COMMAND: Final = ("--", "python", "/train.py")


def words(name: str) -> list[str]:
    """Words of ``submit``."""
    return ["submit", name, "--image", "example.org/train:1", "--workers", "2"]


def rendered(name: str) -> str:
    """The objects of a job, as one List."""
    how = ["--kind", "mpijob", "--dry-run=client", "-o", "json"]
    ended = subprocess.run([*ELASTIC, *words(name), *how, *COMMAND], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise BenchmarkError(f"submit --dry-run ends with {ended.returncode}: {ended.stderr.strip()[:300]}")
    return json.dumps(json.loads(ended.stdout)["items"])


def started(trial: Trial, at: Cluster, name: str, command: Sequence[str]) -> Timing:
    """Make the job; when the server has it, train. The clock runs from before the first process."""
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
        job.launch([*first_step.launcher("ours", trains), *script])
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
