"""Several training functions: what the end of a call costs, and what finished calls cost a newcomer."""

from __future__ import annotations

import json
import sys
from typing import Final

from benchmarks import jobs, steps
from benchmarks.model import Case, Figure, Timing, Trial, Values

END: Final = "end of a call, until the next one may train"
KEPT: Final = "end of a call, until its result is kept"
COMMIT: Final = "one commit"
WEIGHTS, QUICK_WEIGHTS = 25_000_000, 250_000
"""Weights of a result of 100 MB."""
TIMES, QUICK_TIMES = 6, 1
"""All results together fit into the memory for results."""

ADDED: Final = "added by finished calls"
JOINED: Final = "newcomer's first call to the first step at size 2, {} finished calls"
CALLS: Final = 9
SETTLED: Final = 20
DEADLINE_S: Final = 120.0


def end(trial: Trial) -> Values:
    """Measure ends of calls in a job of one process."""
    result = trial.folder / "figures.json"
    size = ["-np", "1", "-H", "localhost:1", "--job", trial.folder.name]
    words = [trial.pick(WEIGHTS, QUICK_WEIGHTS), trial.pick(TIMES, QUICK_TIMES)]
    program = [sys.executable, "-m", "benchmarks.scripts.call_end", str(result), trial.side, *map(str, words)]
    job = jobs.Job(trial.side, trial.folder)
    try:
        job.launch([sys.executable, "-m", "hvd_elastic_ext.cli", "run", *size, *program])
        job.wait_for("figures", result.exists, timeout=DEADLINE_S)
    finally:
        job.end()
    found = json.loads(result.read_text())
    names = {END: "end", KEPT: "kept", COMMIT: "commit"}
    return {quantity: [Timing(value) for value in found[name]] for quantity, name in names.items()}


def catch_up(trial: Trial) -> Values:
    """Measure a newcomer in two jobs: nothing is over in the one, and nine calls in the other."""
    none, some = (joined(trial, calls) for calls in (0, CALLS))
    return {ADDED: [Timing(some.seconds - none.seconds)], JOINED.format("no"): [none], JOINED.format(CALLS): [some]}


def joined(trial: Trial, calls: int) -> Timing:
    """Return the time from the begin of a newcomer's first call to its first step, when ``calls`` are over.

    What comes before, imports above all, is the same with and without finished calls, and takes long.
    """
    folder = trial.folder / f"{trial.folder.name}-{calls}"  # it names the job
    folder.mkdir()
    own = Trial(trial.side, trial.number, folder, trial.quick)
    begun = folder / "begun"
    script = [sys.executable, "-m", "benchmarks.scripts.calls", str(folder / "stamps"), str(begun), str(calls)]
    with jobs.running(own, jobs.Shape(hosts=jobs.HOSTS[:1], max_np=2), command=script) as job:
        job.settle(1, steps_each=SETTLED)
        changed = job.set_hosts(jobs.lines(jobs.HOSTS[:2])).mono

        def took() -> float | None:
            first = steps.first_at(job.stamps(), size=2, after=changed)
            return None if first is None else first.mono - max(map(float, begun.read_text().split()))

        return Timing(job.wait_for("step of the newcomer", took, timeout=DEADLINE_S))


CASES: Final = (
    Case(
        name="call-end",
        about="a training call with a result of 100 MB ends, and another call begins",
        figures=(Figure(END, floor=COMMIT, bar_floor=1.2), Figure(KEPT), Figure(COMMIT)),
        measure=end,
        repeats=3,
        sides=("ours",),
    ),
    Case(
        name="call-catch-up",
        about=f"a second host comes when {CALLS} training calls are over, with a result of 1 MB each",
        figures=(Figure(ADDED, bar_s=0.5), Figure(JOINED.format("no")), Figure(JOINED.format(CALLS))),
        measure=catch_up,
        repeats=5,
        sides=("ours",),
    ),
)
