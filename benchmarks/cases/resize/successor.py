"""A worker is killed: the time until its successor trains, with its imports done before and without that.

Ours runs twice in each repetition, cold and with ``--preload auto``. A job that loses its only worker has no cooldown,
because no other host may work. With two workers both sides wait for a cooldown of 1 s, the shortest that Horovod
allows.
"""

from __future__ import annotations

from typing import Final

from benchmarks import jobs, steps
from benchmarks.model import Case, Figure, Timing, Trial, Values

LONE: Final = "the only worker is killed, to its successor's first step"
PAIR: Final = "one of 2 is killed, to the first step at size 2 (cooldown 1 s)"
WARM: Final = "{}, warm"
READY: Final = "share a template's memory"
"""The launcher's text for each host that can start processes warm."""
STEPS, QUICK_STEPS = 60, 8
READY_S: Final = 120.0
DEADLINE_S: Final = 60.0


def measure(trial: Trial) -> Values:
    """Measure both jobs; ours cold and warm."""
    pair = [successor(trial, size=2, warm=warm) for warm in ((False, True) if trial.side == "ours" else (False,))]
    values = {PAIR: [pair[0]], WARM.format(PAIR): [pair[-1]]}
    if trial.side == "ours":
        values |= {
            LONE: [successor(trial, size=1, warm=False)],
            WARM.format(LONE): [successor(trial, size=1, warm=True)],
        }
    return values


def successor(trial: Trial, *, size: int, warm: bool) -> Timing:
    """Return the time from ``kill -9`` of the newest rank to the first step of a new process in a world of the same
    size."""
    folder = trial.folder / f"{size}-{'warm' if warm else 'cold'}"
    folder.mkdir()
    own = Trial(trial.side, trial.number, folder, trial.quick)
    ours = ("--settle", "0", "--verbose", "--preload", "auto" if warm else "off")
    shape = jobs.Shape(
        hosts=jobs.HOSTS[:size], max_np=size, options=("--blacklist-cooldown-range", "1", "1"), ours=ours
    )
    with jobs.training(own, shape) as job:
        job.settle(size, steps_each=trial.pick(STEPS, QUICK_STEPS))
        if warm:
            job.wait_for("templates", lambda: job.wrote(READY) == size, timeout=READY_S)
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
    figures=(
        Figure(LONE, sides=("ours",)),
        Figure(WARM.format(LONE), floor=LONE, bar_s=1.5, sides=("ours",)),
        Figure(PAIR),
        Figure(WARM.format(PAIR), bar_ratio=1.0),
    ),
    measure=measure,
    repeats=5,
)
