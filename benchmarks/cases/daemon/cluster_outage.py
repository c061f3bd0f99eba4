"""The API server is away for ten minutes: the file stays, the daemon tries rarely, and follows again soon afterwards.

This takes real time. A test does the same in virtual time (``tests/unit/discover/watch/test_outage.py``).
"""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Final

from benchmarks.cases.daemon.cluster import NODES, READY_S, cluster, following
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values

ATTEMPTS: Final = "connections tried meanwhile, by the busier reflector"
BACK: Final = "server back to hosts file that knows what came meanwhile"
AWAY_S, QUICK_AWAY_S = 600.0, 3.0
SETTLED_S: Final = 3.0
"""Seconds from the first hosts file until all watches are open."""
LATE_S: Final = 60.0
GONE: Final = "p0"
ENDED: Final = re.compile(r'^hvd_discover_watch_restarts_total\{.*resource="(\w+)".*\} (\S+)$', re.MULTILINE)


def ended(listening: Path) -> dict[str, float]:
    """Return how many watches of each resource have ended, with failed attempts."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(READY_S)
        connection.connect(str(listening))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()
    counts: dict[str, float] = {}
    for resource, count in ENDED.findall(text):
        counts[resource] = counts.get(resource, 0.0) + float(count)
    return counts


def tried(before: dict[str, float], after: dict[str, float]) -> float:
    """Return the attempts of the busier reflector. The end of the open watch is not an attempt."""
    more = [after[resource] - before.get(resource, 0.0) - 1.0 for resource in after]
    if len(more) < 2:
        raise BenchmarkError(f"the daemon counts no ends of watches: {after}")
    return max(more)


def measure(trial: Trial) -> Values:
    """Delete a pod while the server is away."""
    listening = trial.folder / "s"
    with cluster(trial, NODES) as at, following(trial, at, "--listen", f"unix://{listening}") as one:
        one.job.wait_for("first hosts file", lambda: one.count() == NODES, timeout=READY_S)
        time.sleep(SETTLED_S)
        before, file = ended(listening), one.file.stat()
        at.tell("down", 1)
        at.done("down", 1)
        at.tell("delete", GONE)
        time.sleep(trial.pick(AWAY_S, QUICK_AWAY_S))
        after, same = ended(listening), one.file.stat()
        if (file.st_ino, file.st_mtime_ns) != (same.st_ino, same.st_mtime_ns):
            raise BenchmarkError("the hosts file was touched while nothing was known")
        at.tell("up", 1)
        up = at.done("up", 1)
        one.job.wait_for("the file to follow", lambda: one.count() == NODES - 1, timeout=LATE_S)
        back = time.monotonic() - up
    return {ATTEMPTS: [Timing(tried(before, after))], BACK: [Timing(back)]}


CASE: Final = Case(
    name="cluster-outage",
    about="the API server is away for ten minutes",
    figures=(
        Figure(ATTEMPTS, "maximum", bar_s=35.0, unit="attempts"),
        Figure(BACK, "maximum", bar_s=35.0),
    ),
    measure=measure,
    repeats=1,
    sides=("ours",),
)
