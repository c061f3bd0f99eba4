"""Measures a sync from rank 0 to a newcomer on rank 1, beside flat broadcasts of the same bytes; two ranks.

    sync.py OUTPUT SIDE PARAMETERS TIMES

Each time rank 1 makes a new model, optimizer and State, without optimizer state, as a new process does. The time begins
when it is ready to join, as under a launcher with standby. The stock State does not commit in a sync, so it commits
afterwards.
"""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import horovod.torch as hvd
import torch

from benchmarks.scripts.common import barrier, library, tell, timed, together

AGAIN = 5
"""Syncs without a difference, after each sync with one."""


def main(output: str, side: str, parameters: int, times: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    root = hvd.rank() == 0
    veteran = built(side, parameters, trained=True) if root else None
    length = 3 * 4 * parameters  # weights and Adam's two tensors for each
    warm = torch.ones(length, dtype=torch.uint8)
    figures: dict[str, list[float]] = {"sync": [], "again": [], "flat": []}
    for _ in range(times):
        state = veteran or built(side, parameters, trained=False)
        at_rest()
        figures["sync"].append(together(lambda state=state: entered(side, state)))  # type: ignore[misc]
        at_rest()
        for _ in range(AGAIN):
            barrier()
            figures["again"].append(timed(state.sync))  # no rank is done before all ranks have reported what they hold
        figures["flat"].append(together(lambda: hvd.broadcast_(warm, 0, name="flat")))
        del state
        gc.collect()
    if root:
        tell(output, figures)
    barrier()


def built(side: str, parameters: int, *, trained: bool) -> Any:
    model = torch.nn.ParameterList([torch.full((parameters,), 0.5)])  # like memory that was written to
    optimizer = torch.optim.Adam(model.parameters())
    if trained:
        model[0].grad = torch.ones(parameters)
        optimizer.step()
        model[0].grad = None
    return library(side).TorchState(model=model, optimizer=optimizer, epoch=0)


def at_rest() -> None:
    """Wait until the newcomer's memory is prepared."""
    for thread in threading.enumerate():
        if thread.name == "hvd-commit-memory":
            thread.join()
    barrier()


def entered(side: str, state: Any) -> None:
    state.sync()
    if side == "stock":
        state.save()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
