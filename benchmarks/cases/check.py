"""What ``check_host_updates()`` after every step adds to a step of about 6 ms."""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks import jobs
from benchmarks.model import Case, Figure, Timing, Trial, Values

ADDED: Final = "added to a step"
STEP: Final = "the step without it"
TIMEOUT_S: Final = 240.0
BLOCKS, STEPS = 2, 100
QUICK_BLOCKS, QUICK_STEPS = 1, 10


def measure(trial: Trial, *, ranks: int) -> Values:
    arguments = (QUICK_BLOCKS, QUICK_STEPS) if trial.quick else (BLOCKS, STEPS)
    told = jobs.figures(trial, "checker", ranks=ranks, arguments=arguments, timeout=TIMEOUT_S)
    return {quantity: [Timing(value) for value in told[name]] for quantity, name in ((ADDED, "added"), (STEP, "step"))}


def case(ranks: int, *, bar: float) -> Case:
    """The case of a world of ``ranks``."""
    return Case(
        name=f"check-{ranks}",
        about=f"a look for host updates after each step, {ranks} ranks",
        figures=(Figure(ADDED, bar_ratio=bar), Figure(STEP)),
        measure=partial(measure, ranks=ranks),
        repeats=5,
    )


CASES: Final = (case(2, bar=1 / 8), case(4, bar=1 / 5))
