"""The launcher of 512 hosts with 8 processes each: its cost while nothing happens, and the time when one host leaves.

The launcher is real. One other process simulates its agents (``benchmarks/scripts/simulated_agents.py``): sockets and
frames are real, processes are not, and they answer at once. No figure includes the exchange of addresses between real
processes.

Stock is not measured: each of its workers needs an ssh, so they cannot be simulated.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import jobs
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values

IDLE: Final = "launcher's CPU, nothing happening"
TOLD: Final = "hosts file to the last of 4,096 processes told"
RANKS: Final = "hosts file to the last of 4,088 processes with its new rank"
HOSTS, QUICK_HOSTS = 512, 8
SLOTS: Final = 8
CHANGES, QUICK_CHANGES = 5, 1
IDLE_S, QUICK_IDLE_S = 20.0, 1.0
CALM_S: Final = 2.0
"""Seconds between two changes."""
FORMING_S: Final = 300.0
DEADLINE_S: Final = 20.0
IDLE_PERCENT, BAR_S = 2.0, 0.1
TICKS: Final = os.sysconf("SC_CLK_TCK")

CARRIER: Final = """#!/bin/sh
# In the place of ssh: brings the one line that it is given to the crowd, which has such an agent.
[ "$1" != -G ] || exit 0
echo hvd-elastic-host-reached
# The line is longer than what a FIFO takes in one piece; the name of its file is not.
head -n 1 >"{lines}.$$"
echo "{lines}.$$" >"{lines}"
"""


def measure(trial: Trial) -> Values:
    """Measure some seconds without a change, then hosts that leave one by one."""
    count, changes, idle_s = trial.pick((HOSTS, CHANGES, IDLE_S), (QUICK_HOSTS, QUICK_CHANGES, QUICK_IDLE_S))
    hosts = [f"h{number}:{SLOTS}" for number in range(count)]
    with large_job(trial, tuple(hosts)) as (job, told):
        settled(job, size=count * SLOTS, told=told)
        idle = cpu_share(launcher(job), idle_s)
        times = []
        for _ in range(changes):
            size = len(hosts) * SLOTS
            hosts.pop()
            times.append(one_change(job, told, hosts=hosts, size=size))
            time.sleep(CALM_S)
        return {IDLE: [Timing(100 * idle)], TOLD: [each[0] for each in times], RANKS: [each[1] for each in times]}


@contextlib.contextmanager
def large_job(trial: Trial, hosts: tuple[str, ...]) -> Iterator[tuple[jobs.Job, Path]]:
    """Run the job within the context. Yield it, and the file in which the simulated agents note their messages."""
    programs, lines, told = trial.folder / "bin", trial.folder / "lines", trial.folder / "told"
    programs.mkdir()
    os.mkfifo(lines)
    (programs / "ssh").write_text(CARRIER.format(lines=lines))
    (programs / "ssh").chmod(0o755)
    crowd = jobs.Job(trial.side, trial.folder / "crowd")
    (trial.folder / "crowd").mkdir()
    shape = jobs.Shape(
        hosts=hosts,
        max_np=len(hosts) * SLOTS,
        options=("--elastic-timeout", f"{FORMING_S:g}"),
        ours=("--rsh", "ssh"),
        within=("env", f"PATH={programs}:{os.environ['PATH']}"),
        interface="lo",
    )
    try:
        crowd.launch([sys.executable, "-m", "benchmarks.scripts.simulated_agents", str(lines), str(told)])
        with jobs.running(trial, shape, command=["true"]) as job:
            yield job, told
    finally:
        crowd.end()


def settled(job: jobs.Job, *, size: int, told: Path) -> None:
    """Wait until all processes have their ranks."""
    job.wait_for(f"world of {size}", lambda: sizes(job)[-1:] == [size], timeout=FORMING_S)
    job.wait_for("last rank", lambda: counts(told).get(("rank", 1), (0, 0.0))[0] == size, timeout=FORMING_S)
    time.sleep(CALM_S)


def sizes(job: jobs.Job) -> list[int]:
    """Return the size of every world so far."""
    return [int(record.get("size")) for record in job.records("resized")]


def one_change(job: jobs.Job, told: Path, *, hosts: list[str], size: int) -> tuple[Timing, Timing]:
    """Remove a host from a world of ``size``. Return the time until all processes were notified, and until all have
    ranks."""
    generation = job.records("resized")[-1].generation + 1
    changed = job.set_hosts(hosts).mono

    def until(what: str, count: int) -> Timing:
        def found() -> float | None:
            number, last = counts(told).get((what, generation), (0, 0.0))
            return last if number == count else None

        return job.time_until(f"{what} of {count} processes", found, since=changed, deadline=DEADLINE_S)

    return until("update", size), until("rank", size - SLOTS)


def counts(told: Path) -> dict[tuple[str, int], tuple[int, float]]:
    """Return how many processes received each message of each generation, and when the last one did."""
    try:
        lines = told.read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return {}
    words = [line.split() for line in lines if line.endswith("\n")]
    return {(what, int(number)): (int(count), float(last)) for what, number, count, last in words}


def launcher(job: jobs.Job) -> int:
    """Return the launcher's pid."""
    return int(job.records("started")[0].get("pid"))


def cpu_share(pid: int, seconds: float) -> float:
    """Return the share of one core that a process uses over so many seconds, kernel time included."""
    begun, before = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - begun)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process until now. Raises :class:`BenchmarkError` if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        raise BenchmarkError(f"process {pid} has ended") from None
    return (int(fields[11]) + int(fields[12])) / TICKS


CASE: Final = Case(
    name="large-job",
    about=f"the launcher of {HOSTS} simulated hosts with {SLOTS} processes each; one host goes",
    figures=(
        Figure(IDLE, bar_s=IDLE_PERCENT, unit="% of a core"),
        Figure(TOLD, "maximum", bar_s=BAR_S),
        Figure(RANKS, "maximum"),
    ),
    measure=measure,
    repeats=1,
    sides=("ours",),
)
