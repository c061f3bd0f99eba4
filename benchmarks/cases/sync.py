"""A newcomer gets 604 MB: how long until both ranks have, and have committed, the same."""

from __future__ import annotations

from typing import Final

from benchmarks import jobs
from benchmarks.model import Case, Figure, Timing, Trial, Values

SYNC: Final = "sync() and commit"
AGAIN: Final = "sync() when all agree"
FLAT: Final = "the same bytes, one flat broadcast"
TIMEOUT_S: Final = 300.0
PARAMETERS, QUICK_PARAMETERS = 50_300_000, 1_000_000
TIMES, QUICK_TIMES = 7, 1


def measure(trial: Trial) -> Values:
    arguments = (QUICK_PARAMETERS, QUICK_TIMES) if trial.quick else (PARAMETERS, TIMES)
    told = jobs.figures(trial, "syncer", ranks=2, arguments=arguments, timeout=TIMEOUT_S)
    names = {SYNC: "sync", AGAIN: "again", FLAT: "flat"}
    return {quantity: [Timing(value) for value in told[name]] for quantity, name in names.items()}


CASE: Final = Case(
    name="sync-newcomer",
    about="50 million weights with Adam (604 MB) from rank 0 to a newcomer on rank 1",
    figures=(
        Figure(SYNC, bar_ratio=0.65, floor=FLAT, bar_floor=1.6),
        Figure(AGAIN, bar_s=0.005),
        Figure(FLAT),
    ),
    measure=measure,
    repeats=1,
)
