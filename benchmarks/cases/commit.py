"""What a commit and a roll-back cost in one process, and what memory many of them take.

The bare copy of the same bytes is measured in both processes: the floor for
any commit, and, as it is the same work on both sides, a measure of the noise.
"""

from __future__ import annotations

from typing import Final

from benchmarks import jobs
from benchmarks.model import Case, Figure, Timing, Trial, Values

COMMIT: Final = "save()"
RESTORE: Final = "restore()"
COPY: Final = "the same bytes, copied in place"
GROWTH: Final = "memory after 200 commits more than after two"
TIMEOUT_S: Final = 240.0
LARGE, SMALL = (50_300_000, 1), (512_000, 2000)
"""Parameters and tensors of the two models: 604 MB with Adam, and 2,000 tensors of 256 numbers."""
TIMES, QUICK_TIMES = 20, 2
SHRINK: Final = 50
"""A quick run's large model has so many times fewer parameters."""


def measure_large(trial: Trial) -> Values:
    parameters, count = LARGE
    return _measure(trial, parameters // SHRINK if trial.quick else parameters, count)


def measure_small(trial: Trial) -> Values:
    return _measure(trial, *SMALL)


def _measure(trial: Trial, parameters: int, count: int) -> Values:
    arguments = (parameters, count, QUICK_TIMES if trial.quick else TIMES)
    told = jobs.figures(trial, "committer", ranks=1, arguments=arguments, timeout=TIMEOUT_S)
    names = {COMMIT: "commit", RESTORE: "restore", COPY: "copy", GROWTH: "growth_mb"}
    return {quantity: [Timing(value) for value in told[name]] for quantity, name in names.items()}


CASES: Final = (
    Case(
        name="commit-large",
        about="commits and roll-backs of 50 million weights with Adam (604 MB), in one process",
        figures=(
            Figure(COMMIT, bar_ratio=0.75, floor=COPY, bar_floor=1.15),
            Figure(RESTORE, floor=COPY, bar_floor=1.2),
            Figure(COPY),
            Figure(GROWTH, bar_s=5.0, unit="MB"),
        ),
        measure=measure_large,
        repeats=3,
    ),
    Case(
        name="commit-small",
        about="commits of 2,000 small tensors with Adam (8,000 tensors in all), in one process",
        figures=(Figure(COMMIT, bar_ratio=0.6), Figure(RESTORE), Figure(COPY), Figure(GROWTH, bar_s=5.0, unit="MB")),
        measure=measure_small,
        repeats=3,
    ),
)
