"""An elastic job with a weight that equals the number of the step. It writes a trace of all that it does.

    trainee.py FOLDER

It trains up to the step in FOLDER/goal; without that file it does not end. Each process appends to its own file in
FOLDER/traces, one ``write`` for each line, so that no line is lost when the process ends. ``SLOW_HOST`` starts
``BOOT_S`` seconds later. ``TRAINS``: "tensorflow" to train with that.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOST = os.environ["HOROVOD_HOSTNAME"]
FOLDER = Path(sys.argv[1])
COMMIT_EVERY = int(os.environ["COMMIT_EVERY"])
PAUSE_S = float(os.environ.get("PAUSE_S", "0.05"))

_trace = os.open(FOLDER / "traces" / f"{HOST}-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


rehearses: list[Callable[[], bool]] = []


def note(text: str) -> None:
    """Append a line with the time (mono)."""
    if any(rehearsing() for rehearsing in rehearses):
        return
    os.write(_trace, f"{time.monotonic():.6f} {text}\n".encode())


def parent(pid: int) -> int:
    """Return the parent's pid."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# The supervisor of the slot is between a process and its agent.
note(f"boot {os.getpid()} host {HOST} agent {parent(os.getppid())}")
if os.environ.get("SLOW_HOST") == HOST:
    time.sleep(float(os.environ["BOOT_S"]))

Training = tuple[Any, Any, Callable[[], object], Callable[[], float]]
"""Our module, the State, what does a step, and what reads the weight. Its gradient is always -1."""


def goal() -> float:
    """Return the last step. The test names it well before the step is reached."""
    try:
        return int((FOLDER / "goal").read_text())
    except FileNotFoundError:
        return float("inf")


def with_torch() -> Training:
    """Join the world."""
    import torch

    if (of_torch := "HVD_ELASTIC_COLLECTIVES" in os.environ) is False:
        import horovod.torch as hvd
    import hvd_elastic_ext.torch as elastic

    (elastic if of_torch else hvd).init()
    torch.set_num_threads(1)

    class Weight(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self) -> torch.Tensor:
            return -self.weight.sum()

    model = Weight()
    averaged = elastic.wrap if of_torch else hvd.DistributedOptimizer
    optimizer = averaged(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        model().backward()
        optimizer.step()

    return elastic, elastic.TorchState(model=model, optimizer=optimizer, count=0), step, model.weight.item


def with_tensorflow() -> Training:
    """Join the world. A step is a graph; a rehearsal of one leaves no trace."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    import hvd_elastic_ext.tensorflow as elastic
    from hvd_elastic_ext.worker.state import rehearsal

    rehearses.append(rehearsal.is_under_way)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    dense = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model, optimizer = tf.keras.Sequential([tf.keras.Input((1,)), dense]), tf.keras.optimizers.SGD(1.0)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(dense.kernel)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, [dense.kernel])
        optimizer.apply_gradients(zip(gradients, [dense.kernel], strict=True))

    state = elastic.TensorFlowKerasState(model, optimizer, count=0)
    return elastic, state, step, lambda: float(dense.kernel[0, 0])


elastic, state, step, weight = (with_tensorflow if os.environ.get("TRAINS") == "tensorflow" else with_torch)()
from hvd_elastic_ext.worker.process import standby  # noqa: E402


def place() -> str:
    """Return the place of this process, and its weight."""
    generation = standby.current().generation
    return f"rank {elastic.rank()} size {elastic.size()} host {HOST} generation {generation} weight {weight()}"


@elastic.run
def train(state: Any) -> None:
    note(f"enter {state.count} {place()}")
    while state.count < goal():
        step()
        state.count += 1
        note(f"step {state.count} {place()}")
        if state.count % COMMIT_EVERY == 0:
            state.commit()
            note(f"commit {state.count}")
        else:
            state.check_host_updates()
        time.sleep(PAUSE_S)


train(state)
note(f"done {state.count}")
