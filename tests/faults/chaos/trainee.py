"""An elastic job with a weight that equals the number of the step. It writes a trace of all that it does.

    trainee.py FOLDER

It trains up to the step in FOLDER/goal; without that file it does not end. Each process appends to its own file in
FOLDER/traces, one ``write`` for each line, so that no line is lost when the process ends. ``SLOW_HOST`` starts
``BOOT_S`` seconds later.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

HOST = os.environ["HOROVOD_HOSTNAME"]
FOLDER = Path(sys.argv[1])
COMMIT_EVERY = int(os.environ["COMMIT_EVERY"])
PAUSE_S = float(os.environ.get("PAUSE_S", "0.05"))

_trace = os.open(FOLDER / "traces" / f"{HOST}-{os.getpid()}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(text: str) -> None:
    """Append a line with the time (mono)."""
    os.write(_trace, f"{time.monotonic():.6f} {text}\n".encode())


def parent(pid: int) -> int:
    """Return the parent's pid."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# The supervisor of the slot is between a process and its agent.
note(f"boot {os.getpid()} host {HOST} agent {parent(os.getppid())}")
if os.environ.get("SLOW_HOST") == HOST:
    time.sleep(float(os.environ["BOOT_S"]))

import torch  # noqa: E402

if (OF_TORCH := "HVD_ELASTIC_COLLECTIVES" in os.environ) is False:
    import horovod.torch as hvd
import hvd_elastic_ext.torch as elastic  # noqa: E402
from hvd_elastic_ext.worker.process import standby  # noqa: E402


class Weight(torch.nn.Module):
    """A model with one parameter, whose gradient is always -1."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self) -> torch.Tensor:
        return -self.weight.sum()


def goal() -> float:
    """Return the last step. The test names it well before the step is reached."""
    try:
        return int((FOLDER / "goal").read_text())
    except FileNotFoundError:
        return float("inf")


(elastic if OF_TORCH else hvd).init()
torch.set_num_threads(1)
model = Weight()
averaged = elastic.wrap if OF_TORCH else hvd.DistributedOptimizer
optimizer = averaged(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
state = elastic.TorchState(model=model, optimizer=optimizer, count=0)


def place() -> str:
    """Return the place of this process, and its weight."""
    generation = standby.current().generation
    return (
        f"rank {elastic.rank()} size {elastic.size()} host {HOST} generation {generation} weight {model.weight.item()}"
    )


@elastic.run
def train(state: elastic.TorchState) -> None:
    note(f"enter {state.count} {place()}")
    while state.count < goal():
        optimizer.zero_grad()
        model().backward()
        optimizer.step()
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
