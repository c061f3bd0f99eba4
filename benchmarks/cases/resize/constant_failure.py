"""How long a job of two processes takes from its command to its end if one of them fails at each start.

Stock Horovod starts once, and ends. Ours starts three times, since most failures do not come again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from benchmarks import jobs
from benchmarks.model import Case, Figure, Timing, Trial, Values

RANKS: Final = 2
DEADLINE_S: Final = 400.0
BAR_S: Final = 74.0
"""What stock took, with one start, on two cores with a load of 5. Ours starts three times: a ratio depends on the load.
"""
SCRIPT: Final = Path(__file__).parents[2] / "scripts" / "constant_failure.py"
TOOK: Final = "command to the end of the job"
NAMED: Final = "its last lines name rank 1 and exit code 3"
LAST: Final = 4
"""How many of its last lines are read: stock names the process and the code on two lines, with an empty one after
them.
"""
WORDS: Final = {"ours": ("rank 1 ", "exit code 3"), "stock": ("Process name: 1", "Exit code: 3")}


def measure(trial: Trial) -> Values:
    """Measure from before the launcher's process to its end."""
    job = jobs.Job(trial.side, trial.folder)
    size = ["-np", str(RANKS), "-H", f"localhost:{RANKS}"]
    if trial.side == "ours":
        launcher = [sys.executable, "-m", "hvd_elastic_ext.cli", "run", *size, "--job", trial.folder.name]
    else:
        launcher = [jobs.horovodrun(), *size, "--gloo"]
    try:
        since = time.monotonic()
        job.launch([*launcher, sys.executable, str(SCRIPT)])
        took = job.time_until("end of the job", job.ended, since=since, deadline=DEADLINE_S)
    finally:
        job.end()
    said = job.last_lines(LAST if trial.side == "stock" else 1)
    named = all(any(words in line for line in said) for words in WORDS[trial.side])
    return {TOOK: [took], NAMED: [Timing(100.0 if named else 0.0)]}


CASE: Final = Case(
    name="constant-failure",
    about=f"one of {RANKS} processes on this machine fails at each start",
    figures=(Figure(TOOK, bar_s=BAR_S), Figure(NAMED, unit="%")),
    measure=measure,
)
