"""The CPU time of launcher and agents beside a training of 8 ranks on this machine with steps of 10 ms. Nothing
happens.

All processes of the job count, except those that train. The ended children of the counted processes count, too, such as
the runs of stock's script.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Final

import psutil

from benchmarks import jobs
from benchmarks.model import Case, Figure, Timing, Trial, Values

SHARE: Final = "CPU of launcher and agents, of all cores"
RANKS, QUICK_RANKS = 8, 2
WINDOW_S, QUICK_WINDOW_S = 20.0, 2.0
STEP_S: Final = 0.01
STEPS: Final = 40
START_S: Final = 180.0
BAR_PERCENT: Final = 1.0


def measure(trial: Trial) -> Values:
    """Measure a job that trains, for one period."""
    ranks, window_s = trial.pick((RANKS, WINDOW_S), (QUICK_RANKS, QUICK_WINDOW_S))
    shape = jobs.Shape(hosts=(f"{jobs.HOSTS[0]}:{ranks}",), max_np=ranks, within=("env", f"BENCH_PAUSE_S={STEP_S:g}"))
    with jobs.training(trial, shape) as job:
        job.settle(ranks, steps_each=STEPS, timeout=START_S)
        begun, before = time.monotonic(), cpu_s(job)
        time.sleep(window_s)
        used, passed = cpu_s(job) - before, time.monotonic() - begun
    return {SHARE: [Timing(100 * used / passed / (os.cpu_count() or 1))]}


def cpu_s(job: jobs.Job) -> float:
    """Return the CPU time of all processes that do not train."""
    total = 0.0
    for process in job.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if str(jobs.TRAINEE) not in process.cmdline() or is_launcher(process):
                total += sum(process.cpu_times()[:4])
    return total


def is_launcher(process: psutil.Process) -> bool:
    """Whether it is a launcher: a launcher's command line ends with that of the trainee."""
    return any(name in process.cmdline() for name in ("hvd_elastic_ext.cli", "--min-np"))


CASE: Final = Case(
    name="beside-training",
    about=f"{RANKS} ranks on this machine train with a step of {1000 * STEP_S:g} ms; nothing happens",
    figures=(Figure(SHARE, bar_s=BAR_PERCENT, unit="%"),),
    measure=measure,
    repeats=2,
)
