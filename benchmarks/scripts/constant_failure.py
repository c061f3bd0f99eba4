"""A script whose rank 1 ends with exit code 3 at each start, while rank 0 waits for it in an allreduce."""

from __future__ import annotations

import sys

import horovod.torch as hvd
import torch

if __name__ == "__main__":
    hvd.init()
    if hvd.rank() == 1:
        sys.exit(3)
    for number in range(1000):
        hvd.allreduce(torch.ones(1), name=f"step.{number}")
