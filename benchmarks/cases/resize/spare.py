"""One of three workers is killed: the time until three train again with a spare, beside that until two train on without
one. And what a spare costs that waits. A world of three takes longer to form than one of two, with or without a spare,
above all on two cores. The time until three of four train on shows by how much, and a spare for one of two workers
shows what it costs where all else is equal.

All jobs are ours. A spare that is called in has to get the State, so it may take one broadcast of it longer. Such
broadcasts are measured between the steps of the same world, before the kill. Under ``--engine torch`` the trainee uses
DDP.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import psutil

from benchmarks import jobs, steps
from benchmarks.cases.resize import torch_in_place
from benchmarks.model import Case, Figure, Timing, Trial, Values

ALONE: Final = "kill to next step, 3 to 2 workers, no spare"
OF_FOUR: Final = "kill to next step, 4 to 3 workers, no spare"
SPARED: Final = "kill to next step at size 3, one spare"
BROADCAST: Final = "a broadcast of the State at size 3"
LESS: Final = "kill to next step at size 3, one spare, less the broadcast"
OF_TWO: Final = "kill to next step at size 2, one spare, less a broadcast"
CPU: Final = "CPU of the spare that waits"
MEMORY: Final = "memory of the spare that waits (RSS)"
BESIDE: Final = "memory of a rank of the same script (RSS)"
RANKS: Final = 3
STATE_BYTES: Final = 648
STEPS: Final = (60, 8)
WINDOW_S: Final = (20.0, 1.0)
READY_S: Final = 90.0
DEADLINE_S: Final = 60.0
MB: Final = 1e6


def measure(trial: Trial, *, engine: Sequence[str] = ()) -> Values:
    """Measure jobs without a spare, and one with it, one after the other. ``engine``: its option."""
    without = {ALONE: [alone(trial, RANKS, engine)], OF_FOUR: [alone(trial, RANKS + 1, engine)]}
    three = spared(trial, RANKS, engine)
    return {**without, **three, OF_TWO: spared(trial, RANKS - 1, engine, waits_s=0.0)[LESS]}


def alone(trial: Trial, ranks: int, engine: Sequence[str]) -> Timing:
    """Return the time from ``kill -9`` of one of so many ``ranks`` to the first step of the others."""
    with _training(trial, f"of-{ranks}", ranks, "--spares", "0", *engine) as job:
        job.settle(ranks, steps_each=trial.pick(*STEPS))
        killed = job.kill(steps.members(job.stamps())[trial.number % ranks].pid).mono

        def step() -> float | None:
            first = steps.first_at(job.stamps(), size=ranks - 1, after=killed)
            return None if first is None else first.mono

        return job.time_until(f"step of a world of {ranks - 1}", step, since=killed, deadline=DEADLINE_S)


def spared(trial: Trial, size: int, engine: Sequence[str], *, waits_s: float | None = None) -> Values:
    """Return what a spare that waits takes, and the time from ``kill -9`` of one of so many ranks to its first step.

    ``waits_s``: how long its processor time is looked at; None: as long as that needs.
    """
    window_s = trial.pick(*WINDOW_S) if waits_s is None else waits_s
    with _training(trial, f"spared-{size}", size, "--spares", "1", *engine) as job:
        job.settle(size, steps_each=trial.pick(*STEPS))
        job.wait_for("spare", lambda: len(job.records("parked")) > size, timeout=READY_S)
        job.settle(size, steps_each=trial.pick(*STEPS))
        ranks = {stamp.pid for stamp in job.stamps()}
        waits = psutil.Process(next(each.get("pid") for each in job.records("spawned") if each.get("pid") not in ranks))
        begun, before = time.monotonic(), sum(waits.cpu_times()[:2])
        time.sleep(window_s)
        busy = 100 * (sum(waits.cpu_times()[:2]) - before) / (time.monotonic() - begun)
        memory = waits.memory_info().rss / MB
        broadcast = statistics.median(job.broadcasts())
        victim = steps.members(job.stamps())[trial.number % size].pid
        beside = psutil.Process(victim).memory_info().rss / MB
        killed = job.kill(victim).mono

        def step() -> float | None:
            own = (
                stamp for stamp in job.stamps() if stamp.pid not in ranks
            )  # the others may end a step of the old world
            first = steps.first_at(own, size=size, after=killed)
            return None if first is None else first.mono

        took = job.time_until("step of the spare", step, since=killed, deadline=DEADLINE_S)
    times = {SPARED: [took], BROADCAST: [Timing(broadcast)], LESS: [replace(took, seconds=took.seconds - broadcast)]}
    return {**times, CPU: [Timing(busy)], MEMORY: [Timing(memory)], BESIDE: [Timing(beside)]}


@contextlib.contextmanager
def _training(trial: Trial, name: str, ranks: int, *options: str) -> Iterator[jobs.Job]:
    """A job of so many ranks on one host, in a folder of that name."""
    folder = trial.folder / name
    folder.mkdir()
    within = ("env", f"BENCH_BROADCAST={STATE_BYTES}")
    shape = jobs.Shape(hosts=(f"{jobs.HOSTS[0]}:{ranks}",), max_np=ranks, ours=options, within=within)
    there = Trial(trial.side, trial.number, folder, trial.quick)
    with_ddp = [sys.executable, str(torch_in_place.TRAINEE), str(folder / "stamps"), f"{jobs.TRAINEE_LIMIT_S:g}"]
    with jobs.running(there, shape, command=with_ddp) if "torch" in options else jobs.training(there, shape) as job:
        yield job


FIGURES: Final = (
    Figure(ALONE),
    Figure(OF_FOUR),
    Figure(SPARED),
    Figure(BROADCAST),
    Figure(LESS, floor=ALONE, bar_floor=1.3),
    Figure(OF_TWO, floor=ALONE, bar_floor=1.3),
    Figure(CPU, bar_s=0.1, unit="% of a core"),
    Figure(MEMORY, unit="MB"),
    Figure(BESIDE, unit="MB"),
)
CASE: Final = Case(
    name="spare-recovery",
    about="kill -9 of one of 3 workers; a spare takes its place",
    figures=FIGURES,
    measure=measure,
    repeats=5,
    sides=("ours",),
)
IN_PLACE: Final = Case(
    name="spare-recovery-torch",
    about="the same with DDP under --engine torch",
    figures=FIGURES,
    measure=partial(measure, engine=("--engine", "torch")),
    repeats=5,
    sides=("ours",),
)
