"""Measures the end of a training call whose result is large, beside one commit of the same State.

    call_end.py OUTPUT SIDE PARAMETERS TIMES

It runs in a job of one process, whose agent holds its memory. Each time a call with PARAMETERS weights commits three
times, of which the last is measured, changes the weights once more, and ends. Two calls with a State of a few bytes
follow. The first sync of the one keeps the result of the large call; that of the other has next to nothing to keep. So
the end is what follows the return of the large call's function, and the time by which the next call begins later.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import horovod.torch as hvd
import torch

from benchmarks.scripts.common import library, tell, timed

COMMITS = 3


def main(output: str, side: str, parameters: int, times: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    elastic = library(side)
    commits: list[float] = []
    marks: list[float] = []

    @elastic.run  # type: ignore[untyped-decorator]
    def large(state: Any, weights: torch.nn.Parameter) -> None:
        for _ in range(COMMITS):
            change(weights)
            took = timed(state.commit)
        commits.append(took)
        change(weights)
        marks.append(time.perf_counter())

    @elastic.run  # type: ignore[untyped-decorator]
    def small(state: Any) -> None:
        marks.append(time.perf_counter())
        state.commit()  # waits until the result is kept
        marks.append(time.perf_counter())

    def begun(state: Any) -> float:
        """Begin a call. Return the seconds until its function runs, and leave when that was."""
        marks.clear()
        since = time.perf_counter()
        small(state)
        return marks[0] - since

    ends: list[float] = []
    kept: list[float] = []
    for _ in range(1 + times):
        model = torch.nn.ParameterList([torch.randn(parameters)])
        states = [elastic.TorchState(model=each) for each in (model, torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))]
        marks.clear()
        large(states[0], model[0])
        took = time.perf_counter() - marks[0]
        later = begun(states[1])
        wait = marks[1] - marks[0]
        later -= begun(states[2])
        ends.append(took + later)
        kept.append(took + later + wait)
    tell(output, {"end": ends[1:], "kept": kept[1:], "commit": commits[1:]})


def change(weights: torch.nn.Parameter) -> None:
    with torch.no_grad():
        weights.add_(1.0)


if __name__ == "__main__":
    _, output, side, parameters, times = sys.argv
    main(output, side, int(parameters), int(times))
