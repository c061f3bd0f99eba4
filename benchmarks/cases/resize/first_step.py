"""How long a job of two processes on this machine takes from its command to its first step, beside two launchers."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from benchmarks import jobs, steps
from benchmarks.model import Case, Figure, Timing, Trial, Values

Contender = Literal["ours", "stock", "torchrun"]

PEERS: Final = {"stock": "horovodrun", "torchrun": "torchrun"}
RANKS: Final = 2
DEADLINE_S: Final = 90.0
BAR_RATIOS: Final = {"stock": 1.1, "torchrun": 1.2}
COLLECTIVES: Final = "the same with collectives before the loop (stock: horovodrun)"
SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "first_step.py"


def quantity(peer: str) -> str:
    """Return the table's name of the time beside a peer."""
    return f"command to first step of both (stock: {PEERS[peer]})"


def measure(trial: Trial) -> Values:
    """Measure ours without and with collectives, or the peers one after the other."""
    if trial.side == "ours":
        took = started(trial, "ours")
        return {**{quantity(peer): [took] for peer in PEERS}, COLLECTIVES: [started(trial, "ours", "collectives")]}
    return {
        quantity("stock"): [started(trial, "stock")],
        COLLECTIVES: [started(trial, "stock", "collectives")],
        quantity("torchrun"): [started(trial, "torchrun")],
    }


def started(trial: Trial, contender: Contender, *words: str) -> Timing:
    """Measure one start: from before the launcher's process to the later one of the two first steps."""
    folder = trial.folder / "-".join([contender, *words])
    folder.mkdir()
    job = jobs.Job(trial.side, folder)
    # A job of this folder's name alone would be that of another repetition.
    name = f"{trial.folder.name}-{folder.name}"
    command = [*launcher(contender, name), sys.executable, str(SCRIPT), contender, str(job.stamps_file), *words]
    try:
        since = time.monotonic()
        job.launch(command)
        return job.time_until("first steps", lambda: both(job.stamps()), since=since, deadline=DEADLINE_S)
    finally:
        job.end()


def both(stamps: Sequence[steps.Stamp]) -> float | None:
    """Return when both processes had done a step; None before."""
    return max(stamp.mono for stamp in stamps) if len({stamp.rank for stamp in stamps}) == RANKS else None


def launcher(contender: Contender, name: str) -> list[str]:
    """Return a launcher's command line, up to the program. ``name``: of our job."""
    if contender == "ours":
        size = ["-np", str(RANKS), "-H", f"localhost:{RANKS}", "--job", name]
        return [sys.executable, "-m", "hvd_elastic_ext.cli", "run", *size]
    if contender == "stock":
        return [jobs.horovodrun(), "-np", str(RANKS), "-H", f"localhost:{RANKS}", "--gloo"]
    size = ["--nnodes", "1", "--nproc-per-node", str(RANKS), "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    return [sys.executable, "-m", "torch.distributed.run", *size, "--no-python"]


CASE: Final = Case(
    name="first-step",
    about=f"a job of {RANKS} processes on this machine is started",
    figures=(
        *(Figure(quantity(peer), bar_ratio=bar) for peer, bar in BAR_RATIOS.items()),
        Figure(COLLECTIVES, bar_ratio=BAR_RATIOS["stock"]),
    ),
    measure=measure,
    repeats=9,
)
