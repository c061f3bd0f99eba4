"""Many commits of the same tensors: resident memory and Python's own stay where they are."""

from __future__ import annotations

import gc
import os
import tracemalloc
from pathlib import Path

import torch

from hvd_elastic_ext.core.commit_record import Identity
from hvd_elastic_ext.worker.commits.buffer import CommitBuffer, Contents
from tests.unit.worker.made_commits import buffer_over

FEW, MANY = 5, 60
MEGABYTES = 16


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def commit(buffer: CommitBuffer, live: Contents, *, times: int) -> None:
    for number in range(times):
        live.tensors[0].add_(1)
        buffer.take(live, Identity(1, 0, 1, number), step=number)


def main() -> None:
    torch.set_num_threads(1)
    tensors = [torch.zeros(MEGABYTES << 14) for _ in range(16)] + [torch.zeros(3) for _ in range(300)]
    live = Contents(b"tree" * 1000, tensors, [False] * len(tensors), b"local" * 1000)
    buffer = buffer_over(None)
    commit(buffer, live, times=FEW)
    gc.collect()
    before = resident()
    tracemalloc.start()
    commit(buffer, live, times=3)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    commit(buffer, live, times=MANY)
    gc.collect()
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    grown = resident() - before
    print(f"resident +{grown} bytes; Python's own +{now - held}, at most +{peak - held} meanwhile")
    assert now - held < 20_000
    # The trees, and lists as long as there are tensors: no copy of a tensor.
    assert peak - held < 1 << 20
    assert grown < 4 << 20
    last = buffer.last()
    assert float(last.views[0][0]) == FEW + 3 + MANY


if __name__ == "__main__":
    main()
