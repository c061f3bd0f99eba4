"""A real job chooses its size: ``--autoscale efficiency`` on steps of a known curve, with one to six hosts.

A step sleeps for a part that no host shortens and for a part that all hosts share, so it needs little CPU. The machine
adds some time, and more with each process when it is busy. This time is in the stamps of the steps. So the size by the
rule is reported twice: for the sleeps alone, and for the real steps. A program adds and removes hosts on this machine.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import jobs, steps
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values
from benchmarks.scaling_world import TrueCurve, same_batch

ALONE_S, SHARED_S = 0.3, 1.2
SHARE: Final = 0.4
MOST: Final = 6
STEADY_S, QUICK_STEADY_S = 120.0, 5.0
"""A size that lasts for so many seconds is the final one: steps of any size are measured in less time."""
LIMIT_S, QUICK_LIMIT_S = 900.0, 120.0
FEWEST: Final = 10
"""Steps of a size of which the median is taken."""
HOSTS: Final = tuple(f"h-{number}" for number in range(1, MOST + 1))

OFF: Final = "hosts between the size settled at and the size by the rule for the steps as they were"
SETTLED: Final = "size settled at"
RULE: Final = "size by the rule for the steps as they were"
ASLEEP: Final = "size by the rule for the sleeps alone"
CHANGES: Final = "changes of size"
STILL: Final = "share of the time in which training stands still for them"

CLOUD: Final = """#!{python}
import os
wanted, leaving = int(os.environ["HVD_ELASTIC_HOSTS"]), os.environ["HVD_ELASTIC_LEAVING"].split(",")
names = [name for name in {names!r} if name not in leaving][:wanted]
with open({hosts!r} + ".new", "w") as file:
    file.writelines(f"{{name}}:1\\n" for name in names)
os.replace({hosts!r} + ".new", {hosts!r})
"""


def measure(trial: Trial) -> Values:
    """Run one job until its size does not change any more."""
    cloud = _cloud(trial.folder)
    policy = f"efficiency:batch=global,share={SHARE:g}"
    shape = jobs.Shape(
        hosts=HOSTS[:1],
        max_np=MOST,
        ours=("--rsh", "local", "--autoscale", policy, "--scale-with", f"exec:{cloud}"),
        within=("env", f"BENCH_PAUSE_S={ALONE_S:g}", f"BENCH_SHARED_S={SHARED_S:g}"),
    )
    with jobs.training(trial, shape, limit_s=LIMIT_S) as job:
        job.settle(1, steps_each=5)
        _wait_until_steady(job, trial.pick(STEADY_S, QUICK_STEADY_S), trial.pick(LIMIT_S, QUICK_LIMIT_S))
        stamps, made = list(job.stamps()), job.records("scaled")
    asleep = same_batch("", ALONE_S, SHARED_S, 0.0)
    best = as_they_were(asleep, stamps).best(SHARE, MOST)
    settled = int(made[-1].get("hosts") or 0) if made else 1
    return {
        OFF: [Timing(abs(settled - best))],
        SETTLED: [Timing(settled)],
        RULE: [Timing(best)],
        ASLEEP: [Timing(asleep.best(SHARE, MOST))],
        CHANGES: [Timing(len(made))],
        STILL: [Timing(100 * standstill(stamps))],
    }


def _cloud(folder: Path) -> Path:
    program = folder / "cloud"
    program.write_text(CLOUD.format(python=sys.executable, names=HOSTS, hosts=str(folder / "hosts")))
    program.chmod(0o700)
    return program


def _wait_until_steady(job: jobs.Job, seconds: float, limit_s: float) -> None:
    """Return when the size has not changed for ``seconds``. Raises :class:`BenchmarkError` if it changes until the
    limit."""
    deadline = time.monotonic() + limit_s
    changes, since = 0, time.monotonic()

    def steady() -> bool:
        nonlocal changes, since
        made = len(job.records("scaled")) + len(job.records("resized"))
        if made != changes:
            changes, since = made, time.monotonic()
        return time.monotonic() - since > seconds or time.monotonic() > deadline

    job.wait_for("steady size", steady, timeout=limit_s + 10)
    if time.monotonic() - since <= seconds:
        raise BenchmarkError(f"the size still changed after {limit_s:g} s")


def standstill(stamps: Sequence[steps.Stamp]) -> float:
    """Return the share of the time without a step because the world changed.

    For each change this is the time from the step before it to the step after it, less a usual step of the new size.
    """
    usual, changes = lengths(stamps)
    still = sum(max(0.0, gap - median(usual.get(size, [gap]))) for gap, size in changes)
    return still / (sum(map(sum, usual.values())) + sum(gap for gap, _ in changes))


def lengths(stamps: Sequence[steps.Stamp]) -> tuple[dict[int, list[float]], list[tuple[float, int]]]:
    """Return the seconds of steps within worlds, by size; and of the first step of each world, with its size."""
    ends: dict[int, tuple[float, int]] = {}
    for stamp in stamps:
        ends.setdefault(stamp.step, (stamp.mono, stamp.size))
    ordered = [ends[step] for step in sorted(ends)]
    if len(ordered) < 2:
        raise BenchmarkError("the job has made no steps")
    usual: dict[int, list[float]] = {}
    changes = []
    for (before, was), (after, size) in itertools.pairwise(ordered):
        if was == size:
            usual.setdefault(size, []).append(after - before)
        else:
            changes.append((after - before, size))
    return usual, changes


def as_they_were(asleep: TrueCurve, stamps: Sequence[steps.Stamp]) -> TrueCurve:
    """Return the curve of the real steps. A size without steps gets the additional time of the nearest size that has
    some."""
    usual = lengths(stamps)[0]
    if not usual:
        raise BenchmarkError("no world has made two steps")
    fewest = min(FEWEST, max(map(len, usual.values())))  # no size of a quick run has so many steps
    made = {size: median(seconds) for size, seconds in usual.items() if len(seconds) >= fewest}

    def step_s(size: int) -> float:
        near = min(made, key=lambda other: (abs(other - size), other))
        return made[near] + asleep.step_s(size) - asleep.step_s(near)

    return TrueCurve("", "global", step_s, asleep.busy)


CASE: Final = Case(
    name="autoscale-real",
    about=f"a job whose steps take {ALONE_S:g} s + {SHARED_S:g} s / hosts chooses its size, of 1 to {MOST}",
    figures=(
        Figure(OFF, bar_s=0, unit="hosts"),
        Figure(SETTLED, unit="hosts"),
        Figure(RULE, unit="hosts"),
        Figure(ASLEEP, unit="hosts"),
        Figure(CHANGES, unit="attempts"),
        Figure(STILL, bar_s=2.0, unit="%"),
    ),
    measure=measure,
    repeats=1,
    sides=("ours",),
)
