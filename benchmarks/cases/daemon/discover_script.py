"""The script that stock Horovod runs every second: ours, beside one that asks the cluster itself.

Without a daemon, users write the latter: `kubectl get pods` with the job's labels. It asks the tests' API server over
TLS, because kubectl sends its token only over TLS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.cases.daemon.cluster import PODS, QUICK_PODS, cluster
from benchmarks.model import SIDES, BenchmarkError, Case, Figure, Timing, Trial, Values
from benchmarks.scripts.api_server import SELECTOR

CALL: Final = "a call of the script (stock's asks kubectl)"
ROUNDS: Final = 5
CALLS, QUICK_CALLS = 300, 2
KUBECTL_CALLS, QUICK_KUBECTL_CALLS = 10, 1
SCRIPT: Final = Path(__file__).parents[3] / "scripts" / "discover_hosts.sh"
ASKS_KUBECTL: Final = f"""#!/bin/sh
exec kubectl get pods --selector {SELECTOR} --field-selector status.phase=Running \\
    --output jsonpath='{{range .items[*]}}{{.metadata.name}}.job.default.svc:1{{"\\n"}}{{end}}'
"""


def measure(trial: Trial) -> Values:
    """Measure each script; one shell calls it repeatedly."""
    pods = trial.pick(PODS, QUICK_PODS)
    if trial.side == "ours":
        hosts = trial.folder / "followed"
        hosts.write_text("".join(f"p{number}.job.default.svc:1\n" for number in range(pods)))
        return {CALL: timed(SCRIPT, {"HVD_HOSTS_FILE": str(hosts)}, pods, trial.pick(CALLS, QUICK_CALLS))}
    with cluster(trial, pods, tls=True) as at:
        script = trial.folder / "asks_kubectl.sh"
        script.write_text(ASKS_KUBECTL)
        home = {"KUBECONFIG": str(at.kubeconfig), "HOME": str(trial.folder)}  # kubectl's discovery cache
        return {CALL: timed(script, home, pods, trial.pick(KUBECTL_CALLS, QUICK_KUBECTL_CALLS))}


def timed(script: Path, variables: Mapping[str, str], hosts: int, calls: int) -> list[Timing]:
    """Return the mean time of ``calls`` calls in a row, several times. The first call only checks the output."""
    environment = {**os.environ, **variables}
    first = subprocess.run(["sh", str(script)], env=environment, capture_output=True, text=True, check=False)
    if first.stdout.count("\n") != hosts:
        raise BenchmarkError(f"{script.name} names {first.stdout.count(chr(10))} hosts of {hosts}: {first.stderr}")
    loop = f"i=0; while [ $i -lt {calls} ]; do sh '{script}' >/dev/null; i=$((i+1)); done"
    times = []
    for _ in range(ROUNDS):
        begun = time.monotonic()
        subprocess.run(["sh", "-c", loop], env=environment, check=True)
        times.append(Timing((time.monotonic() - begun) / calls))
    return times


CASE: Final = Case(
    name="discover-script",
    about=f"the script that names {PODS:,} hosts to stock Horovod: discover_hosts.sh, and one that asks kubectl",
    figures=(Figure(CALL), Figure(CALL, "maximum", bar_s=0.003)),
    measure=measure,
    repeats=1,
    sides=SIDES if shutil.which("kubectl") else ("ours",),
)
