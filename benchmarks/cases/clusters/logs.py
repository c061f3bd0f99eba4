"""The cost of following the output of a job with many pods that each write a line a second."""

from __future__ import annotations

import sys
import time
from typing import Final

from benchmarks import jobs
from benchmarks.cases.daemon.cluster import cluster
from benchmarks.cases.resize.large_job import cpu_s
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values

CPU: Final = "CPU of `hvd-elastic logs -f`"
BAR: Final = 5.0
PODS, QUICK_PODS = 100, 10
SECONDS, QUICK_SECONDS = 20.0, 2.0
READY_S: Final = 60.0
NAME: Final = "digits"


def measure(trial: Trial) -> Values:
    """Follow all pods; measure once lines of all have arrived."""
    pods, seconds = trial.pick((PODS, SECONDS), (QUICK_PODS, QUICK_SECONDS))
    folder = trial.folder / "follower"
    folder.mkdir()
    job = jobs.Job(trial.side, folder)
    with cluster(trial, 0) as at:
        at.tell("job", NAME, pods)
        at.done("job", NAME)
        try:
            words = ["logs", "-f", NAME, "--kubeconfig", str(at.kubeconfig)]
            job.launch([sys.executable, "-m", "hvd_elastic_ext.cli", *words])
            job.wait_for("lines of all pods", lambda: job.wrote(f"[{NAME}-worker-") >= 2 * pods, timeout=READY_S)
            pid = follower(job)
            began, before, wrote = time.monotonic(), cpu_s(pid), job.wrote("tick")
            time.sleep(seconds)
            used, took = cpu_s(pid) - before, time.monotonic() - began
            if job.wrote("tick") - wrote < 0.8 * pods * seconds and not trial.quick:
                raise BenchmarkError("fewer lines came than were to be followed: the machine is too busy")
        finally:
            job.end()
    return {CPU: [Timing(100 * used / took)]}


def follower(job: jobs.Job) -> int:
    """Return the pid of the command. Raises :class:`BenchmarkError` if it has ended."""
    for process in job.processes():
        if process.cmdline()[1:4] == ["-m", "hvd_elastic_ext.cli", "logs"]:
            return process.pid
    raise BenchmarkError(f"the command has ended: {job.last_output()}")


CASE: Final = Case(
    name="logs-100",
    about=f"the output of {PODS} pods that write a line a second each is followed",
    figures=(Figure(CPU, bar_s=BAR, unit="% of a core"),),
    measure=measure,
    repeats=3,
    sides=("ours",),
)
