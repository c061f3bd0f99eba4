"""Measures commits and roll-backs in one process, beside a bare copy of the same bytes.

    commit.py OUTPUT SIDE PARAMETERS TENSORS TIMES [DEVICE]

PARAMETERS weights in TENSORS equal tensors on DEVICE (default: cpu), with Adam, which keeps two tensors and a number
for each. On a GPU the bare copies go into pinned memory and back, all queued at once.
"""

from __future__ import annotations

import gc
import sys

import horovod.torch as hvd
import torch

from benchmarks.scripts.common import library, resident_mb, tell, tensors, timed

WARM_UP = 3
FLAT_AFTER = 2
"""After this many commits, memory must not grow any more."""


def main(output: str, side: str, parameters: int, count: int, times: int, device: str = "cpu") -> None:
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.randn(parameters // count) for _ in range(count)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    sum(parameter.sum() for parameter in model).backward()
    optimizer.step()
    optimizer.zero_grad()
    state = library(side).TorchState(model=model, optimizer=optimizer, epoch=0)
    live = tensors([model.state_dict(), optimizer.state_dict()])
    on_gpu = device != "cpu"
    buffers = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu) for tensor in live]

    def copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
        """The least cost of a commit: copies every byte into existing memory."""
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=on_gpu)
        settle()

    def settle() -> None:
        """Wait until all queued work is done."""
        if on_gpu:
            torch.cuda.synchronize()

    def restore() -> None:
        state.restore()
        settle()

    figures: dict[str, list[float]] = {"commit": [], "copy": [], "restore": [], "copy_back": []}
    for _ in range(WARM_UP + times):
        figures["commit"].append(timed(state.save))
        figures["copy"].append(timed(lambda: copy(buffers, live)))
        figures["copy_back"].append(timed(lambda: copy(live, buffers)))
        figures["restore"].append(timed(restore))
    figures = {name: seconds[WARM_UP:] for name, seconds in figures.items()}
    tell(output, {**figures, "growth_mb": [growth_mb(state, commits=10 * times)]})


def growth_mb(state: object, *, commits: int) -> float:
    """Return the growth of the used memory from two commits to many."""
    for _ in range(FLAT_AFTER):
        state.save()  # type: ignore[attr-defined]
    gc.collect()
    before = resident_mb()
    for _ in range(commits):
        state.save()  # type: ignore[attr-defined]
    gc.collect()
    return resident_mb() - before


if __name__ == "__main__":
    _, output, side, parameters, count, times, *device = sys.argv
    main(output, side, int(parameters), int(count), int(times), *device)
