"""What one commit costs: ``TorchState.save()`` of a model with Adam, in one process.

The bare copy of the same bytes is measured in both processes: the floor for
any commit, and, as it is the same work on both sides, a measure of the noise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks import jobs
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values

SAVE: Final = "TorchState.save()"
COPY: Final = "the same bytes, copied in place"
COMMITTER: Final = Path(__file__).parent.parent / "committer.py"
WIDTH, QUICK_WIDTH = 2048, 256
SAVES, QUICK_SAVES = 20, 3
TIMEOUT_S: Final = 120.0


def measure(trial: Trial) -> Values:
    """Many saves in a process of its own."""
    size = (QUICK_WIDTH, QUICK_SAVES) if trial.quick else (WIDTH, SAVES)
    command = [sys.executable, str(COMMITTER), trial.side, *map(str, size)]
    try:
        ended = subprocess.run(
            command,
            env=jobs.environ(os.environ, trial.folder),
            cwd=trial.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"no end of {COMMITTER.name} in {TIMEOUT_S:g} s") from None
    if ended.returncode != 0:
        said = ended.stderr.strip().splitlines() or ["it wrote nothing"]
        raise BenchmarkError(f"{COMMITTER.name} ended with exit code {ended.returncode}: {said[-1]}")
    told = json.loads(ended.stdout.splitlines()[-1])
    return {SAVE: [Timing(s) for s in told["saves"]], COPY: [Timing(s) for s in told["copies"]]}


CASE: Final = Case(
    name="commit-cost",
    about="one commit of 8.4 million weights with Adam (101 MB), in one process",
    figures=(Figure(SAVE), Figure(COPY)),
    measure=measure,
    repeats=3,
)
