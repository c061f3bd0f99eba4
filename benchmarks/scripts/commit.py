"""Time commits and roll-backs in one process, beside a bare copy of the same bytes.

    commit.py OUTPUT SIDE PARAMETERS TENSORS TIMES

PARAMETERS weights in TENSORS equal tensors, with Adam, which keeps two tensors and a number for each.
"""

from __future__ import annotations

import gc
import sys

import horovod.torch as hvd
import torch

from benchmarks.scripts.common import library, resident_mb, tell, tensors, timed

WARM_UP = 3
FLAT_AFTER = 2
"""After so many commits memory must not grow any more."""


def main(output: str, side: str, parameters: int, count: int, times: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.randn(parameters // count) for _ in range(count))
    optimizer = torch.optim.Adam(model.parameters())
    sum(parameter.sum() for parameter in model).backward()
    optimizer.step()
    optimizer.zero_grad()
    state = library(side).TorchState(model=model, optimizer=optimizer, epoch=0)
    live = tensors([model.state_dict(), optimizer.state_dict()])
    buffers = [tensor.clone() for tensor in live]

    def bare_copy() -> None:
        """The least that a commit costs: every byte copied into existing memory."""
        for target, source in zip(buffers, live, strict=True):
            target.copy_(source)

    figures: dict[str, list[float]] = {"commit": [], "copy": [], "restore": []}
    for _ in range(WARM_UP + times):
        figures["commit"].append(timed(state.save))
        figures["copy"].append(timed(bare_copy))
        figures["restore"].append(timed(state.restore))
    figures = {name: seconds[WARM_UP:] for name, seconds in figures.items()}
    tell(output, {**figures, "growth_mb": [growth_mb(state, commits=10 * times)]})


def growth_mb(state: object, *, commits: int) -> float:
    """The growth of memory in use from two commits to many."""
    for _ in range(FLAT_AFTER):
        state.save()  # type: ignore[attr-defined]
    gc.collect()
    before = resident_mb()
    for _ in range(commits):
        state.save()  # type: ignore[attr-defined]
    gc.collect()
    return resident_mb() - before


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
