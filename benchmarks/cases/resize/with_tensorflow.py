"""TensorFlow and Keras beside stock Horovod: a kill, a newcomer that has graphs to make, a commit."""

from __future__ import annotations

import importlib.util
import random
import sys
from functools import cache, partial
from pathlib import Path
from typing import Final

from benchmarks import jobs, steps
from benchmarks.cases.resize.growth import DEADLINE_S, JOINED, STALL, figures
from benchmarks.cases.resize.shrink import KILL
from benchmarks.cases.state.in_process import COMMIT, COPY, RESTORE, by_script
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values

TRAINEE: Final = Path(jobs.TRAINEE).with_name("tensorflow_trainee.py")
STEPS: Final = (40, 8)
START_S: Final = 120.0
BAR_KILL_S: Final = 2.0
BAR_STALL_S: Final = 1.0
BAR_COMMIT: Final = 1.3
KINDS: Final = {"loop": "a loop with tf.function", "fit": "model.fit with callbacks"}


@cache
def missing() -> str | None:
    """What is missing here."""
    if importlib.util.find_spec("tensorflow") is None:
        return "needs TensorFlow: scripts/setup --with tensorflow"
    return None


def command(trial: Trial, kind: str) -> list[str]:
    """The command line of the trainee."""
    return [sys.executable, str(TRAINEE), trial.side, kind, str(trial.folder / "stamps"), f"{jobs.TRAINEE_LIMIT_S:g}"]


def kill(trial: Trial, kind: str) -> Values:
    """Kill one of two ranks, the other one in each repetition."""
    shape = jobs.Shape(hosts=jobs.HOSTS[:2], max_np=2)
    with jobs.running(trial, shape, command=command(trial, kind)) as job:
        job.settle(2, steps_each=trial.pick(*STEPS), timeout=START_S)
        lost = job.kill(steps.members(job.stamps())[trial.number % 2].pid).mono

        def step() -> float | None:
            first = steps.first_at(job.stamps(), size=1, after=lost)
            return None if first is None else first.mono

        return {KILL.format(2, 1): [job.time_until("step of a world of 1", step, since=lost, deadline=60.0)]}


def join(trial: Trial, kind: str) -> Values:
    """Add a second host."""
    shape = jobs.Shape(hosts=jobs.HOSTS[:1], max_np=2)
    with jobs.running(trial, shape, command=command(trial, kind)) as job:
        job.settle(1, steps_each=trial.pick(*STEPS), timeout=START_S)
        survivor = steps.members(job.stamps())[0].pid
        jobs.between_polls(job, random.Random(trial.number))
        changed = job.set_hosts(jobs.lines(jobs.HOSTS[:2])).mono
        try:
            job.settle(2, steps_each=trial.pick(*STEPS), timeout=DEADLINE_S)
        except BenchmarkError:
            if trial.side == "ours":
                raise
            # Stock's job ends if its newcomer takes longer than a timeout of its rendezvous.
            return {STALL: [Timing(DEADLINE_S, at_least=True)], JOINED: [Timing(DEADLINE_S, at_least=True)]}
        return figures(job.stamps(), survivor=survivor, changed=changed)


CASES: Final = (
    *(
        Case(
            name=f"tensorflow-kill-{kind}",
            about=f"kill -9 of one of 2 workers of TensorFlow: {what}",
            figures=(Figure(KILL.format(2, 1), bar_s=BAR_KILL_S, bar_ratio=1.0, slack_s=0.05),),
            measure=partial(kill, kind=kind),
            repeats=5,
            missing=missing,
        )
        for kind, what in KINDS.items()
    ),
    *(
        Case(
            name=f"tensorflow-join-{kind}",
            about=f"a second host comes to TensorFlow: {what}",
            figures=(Figure(STALL, bar_s=BAR_STALL_S, bar_ratio=1.0), Figure(JOINED)),
            measure=partial(join, kind=kind),
            repeats=3,
            missing=missing,
        )
        for kind, what in KINDS.items()
    ),
    Case(
        name="tensorflow-commit",
        about="commits and roll-backs of 12 variables of TensorFlow (201 MB), in one process",
        figures=(Figure(COMMIT, floor=COPY, bar_floor=BAR_COMMIT), Figure(RESTORE), Figure(COPY)),
        measure=by_script(
            "tensorflow_commit",
            {COMMIT: "commit", COPY: "copy", RESTORE: "restore"},
            full=(2048, 12, 15),
            quick=(256, 2, 1),
        ),
        repeats=3,
        missing=missing,
    ),
)
