"""`simulate`: the speed of the launcher's own driver in virtual time, on one core.

Each host has one process. Hosts leave without notice and return half an hour later. Each of both events changes the
world of all others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values

SECONDS: Final = "CPU time"
CHANGE: Final = "CPU time for each change of the world"
MEMORY: Final = "memory"
DEADLINE_S: Final = 7200.0
PROGRAM: Final = """
import json, resource, sys, time
from hvd_elastic_ext.simulate import options
from hvd_elastic_ext.simulate.job import simulate
from hvd_elastic_ext.simulate.traces.synthetic import parsed
trace = parsed(sys.argv[1]).trace(0)
settings = options.settings({"min_num_proc": 1}, trace)
begun = time.process_time()
found = simulate(trace, settings, options.times("step=10s"))
seconds = time.process_time() - begun
most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "memory": most, "worlds": found.worlds, "events": found.events}))
"""


def measure(trial: Trial, *, hosts: int, mtbf: str, days: float, quick_days: float) -> Values:
    """Simulate one job, in a process of its own, so that only its own memory is measured."""
    spec = f"hosts={trial.pick(hosts, 100)},mtbf={mtbf},days={trial.pick(days, quick_days)}"
    command = [sys.executable, "-c", PROGRAM, spec]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True, env=os.environ)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(f"{spec}: {error}") from error
    found = json.loads(done.stdout)
    return {
        SECONDS: [Timing(found["seconds"])],
        CHANGE: [Timing(found["seconds"] / max(1, found["worlds"]))],
        MEMORY: [Timing(found["memory"])],
    }


THOUSAND: Final = Case(
    name="simulate-1000",
    about="1,000 simulated hosts for half a day, each reclaimed once in 30 days",
    figures=(Figure(SECONDS), Figure(CHANGE), Figure(MEMORY, unit="MB")),
    measure=lambda trial: measure(trial, hosts=1000, mtbf="30d", days=0.5, quick_days=0.1),
    repeats=1,
    sides=("ours",),
)
TEN_THOUSAND: Final = Case(
    name="simulate-10000",
    about="10,000 simulated hosts for 7 days, each lost once in 150 days",
    figures=(Figure(SECONDS, bar_s=1200.0), Figure(CHANGE), Figure(MEMORY, bar_s=1000.0, unit="MB")),
    measure=lambda trial: measure(trial, hosts=10000, mtbf="150d", days=7, quick_days=0.1),
    repeats=1,
    sides=("ours",),
    named_only=True,
)
