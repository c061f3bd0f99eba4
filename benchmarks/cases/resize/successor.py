"""A worker is killed, and no spare is there: the time until its successor trains.

A job of ours that loses its only worker has no cooldown, because no other host may work. With two workers both sides
wait for a cooldown of 1 s, the shortest that Horovod allows.
"""

from __future__ import annotations

from typing import Final

from benchmarks import jobs, steps
from benchmarks.model import Case, Figure, Timing, Trial, Values

LONE: Final = "the only worker is killed, to its successor's first step"
PAIR: Final = "one of 2 is killed, to the first step at size 2 (cooldown 1 s)"
STEPS, QUICK_STEPS = 60, 8
DEADLINE_S: Final = 60.0


def measure(trial: Trial) -> Values:
    """Measure both jobs."""
    values = {PAIR: [successor(trial, size=2)]}
    return {**values, LONE: [successor(trial, size=1)]} if trial.side == "ours" else values


def successor(trial: Trial, *, size: int) -> Timing:
    """Return the time from ``kill -9`` of the newest rank to the first step of a new process in a world of the same
    size."""
    folder = trial.folder / str(size)
    folder.mkdir()
    own = Trial(trial.side, trial.number, folder, trial.quick)
    shape = jobs.Shape(
        hosts=jobs.HOSTS[:size],
        max_np=size,
        options=("--blacklist-cooldown-range", "1", "1"),
        ours=("--settle", "0"),
    )
    with jobs.training(own, shape) as job:
        job.settle(size, steps_each=trial.pick(STEPS, QUICK_STEPS))
        before = {stamp.pid for stamp in job.stamps()}
        killed = job.kill(steps.members(job.stamps())[size - 1].pid).mono

        def step() -> float | None:
            first = steps.first_at((s for s in job.stamps() if s.pid not in before), size=size, after=killed)
            return None if first is None else first.mono

        return job.time_until("step of the successor", step, since=killed, deadline=DEADLINE_S)


CASE: Final = Case(
    name="successor",
    about="kill -9 of a worker; another one takes its place",
    figures=(Figure(LONE, sides=("ours",)), Figure(PAIR)),
    measure=measure,
    repeats=5,
)
