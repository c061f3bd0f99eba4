"""Measures commits of TensorFlow variables in one process, beside a bare copy of the same bytes.

    tensorflow_commit.py OUTPUT SIDE SIZE COUNT TIMES

COUNT variables of SIZE x SIZE numbers of 4 bytes. The copy is torch's, from TensorFlow's memory into existing memory.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import horovod.tensorflow as hvd
import tensorflow as tf
import torch
from torch.utils import dlpack

from benchmarks.scripts.common import tell, timed

WARM_UP = 3


def main(output: str, side: str, size: int, count: int, times: int) -> None:
    if side == "ours":
        import hvd_elastic_ext.tensorflow as elastic
    else:
        elastic = hvd.elastic
    hvd.init()
    torch.set_num_threads(1)
    variables = [tf.Variable(tf.random.normal((size, size))) for _ in range(count)]
    state = elastic.TensorFlowState(variables, batch=0)
    buffers = [torch.zeros((size, size)) for _ in range(count)]
    one = tf.ones((size, size))

    def copy() -> None:
        """The least cost of a commit."""
        handles = [dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(each.read_value())) for each in variables]
        torch._foreach_copy_(buffers, handles)

    figures: dict[str, list[float]] = {"commit": [], "copy": [], "restore": []}
    for _ in range(WARM_UP + times):
        for variable in variables:
            variable.assign_add(one)
        figures["commit"].append(timed(state.save))
        figures["copy"].append(timed(copy))
        figures["restore"].append(timed(state.restore))
    tell(output, {name: seconds[WARM_UP:] for name, seconds in figures.items()})


if __name__ == "__main__":
    _, output, side, size, count, times = sys.argv
    main(output, side, int(size), int(count), int(times))
