"""The events of ``script.py``, and its command line under each launcher."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("script.py")
COMMIT_EVERY = 5
BESIDE = Path(sys.executable).parent

Event = dict[str, Any]


def events(directory: Path, kind: str | None = None) -> list[Event]:
    """Return the events of all complete lines so far, those of each process in order."""
    lines = [line for file in sorted(directory.glob("*.jsonl")) for line in file.read_text().splitlines(keepends=True)]
    found = [json.loads(line) for line in lines if line.endswith("\n")]
    return [event for event in found if kind in (None, event["event"])]


def script(directory: Path, *, steps: int, pause: float) -> list[str]:
    return [os.fspath(SCRIPT), os.fspath(directory), str(steps), str(pause)]


def torchrun(endpoint: int, *, last_call: float) -> list[str]:
    """Return the command of an agent of a job with one or two nodes. A single node waits ``last_call`` seconds for
    another one; the first one hosts the rendezvous."""
    return [
        os.fspath(BESIDE / "torchrun"), "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "5",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{endpoint}", "--rdzv-id", "job",
        "--rdzv-conf", f"last_call_timeout={last_call:g}", "--monitor-interval", "0.1",
    ]  # fmt: skip


QUIET: Mapping[str, str | None] = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def assert_finished_alike(done: list[Event], *, ranks: int, steps: int) -> None:
    """Check that all ranks ended at the same step with the same weights, and that training reduced the error."""
    assert sorted(event["rank"] for event in done) == list(range(ranks))
    assert {event["size"] for event in done} == {ranks}
    assert {event["step"] for event in done} == {steps}
    assert len({event["fingerprint"] for event in done}) == 1
    assert len({tuple(event["weights"]) for event in done}) == 1
    assert done[0]["error"] < 0.2
