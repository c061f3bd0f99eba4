"""Does the repetitions. The sides alternate, so that a disturbance affects both."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.model import BenchmarkError, Case, Repetition, Trial


def run(case: Case, *, repeats: int, quick: bool) -> Iterator[Repetition]:
    """Yield each repetition when it is done: stock, ours, stock, ours…"""
    for number in range(repeats):
        for side in case.sides:
            folder = Path(tempfile.mkdtemp(prefix="hvd-bench-"))
            try:
                yield repetition(case, Trial(side=side, number=number, folder=folder, quick=quick))
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def repetition(case: Case, trial: Trial) -> Repetition:
    """Do one repetition. A failure becomes a part of the result."""
    try:
        values = case.measure(trial)
    except (BenchmarkError, OSError) as error:
        return Repetition(case.name, trial.side, trial.number, failure=str(error))
    return Repetition(case.name, trial.side, trial.number, values=values)
