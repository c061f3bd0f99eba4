"""From a change of the hosts file to the driver that knows it.

Ours: the ``published`` line of the journal. Stock: the first run of its discovery script with the new list. The stamp
is written before the script prints the list, so stock's figure is a little too low.
"""

from __future__ import annotations

import random
import sys
from typing import Final

from benchmarks import jobs
from benchmarks.model import Case, Figure, Timing, Trial, Values

QUANTITY: Final = "hosts file to driver"
CHANGES, QUICK_CHANGES = 30, 4
DEADLINE_S: Final = 10.0
BAR_S: Final = 0.05
SLEEPER: Final = "import time\ntime.sleep(240)"
"""A worker that uses no CPU."""


def measure(trial: Trial) -> Values:
    """Measure the time of each of many changes of one job's hosts file."""
    shape = jobs.Shape(hosts=jobs.HOSTS[:1], max_np=1)
    chance = random.Random(trial.number)
    found = []
    with jobs.running(trial, shape, command=[sys.executable, "-c", SLEEPER]) as job:
        job.wait_for("first look at the hosts", lambda: known(job), timeout=jobs.START_TIMEOUT_S)
        for change in range(trial.pick(CHANGES, QUICK_CHANGES)):
            jobs.between_polls(job, chance)
            found.append(one_change(job, slots=2 + change))
    return {QUANTITY: found}


def one_change(job: jobs.Job, *, slots: int) -> Timing:
    """Give a second host ``slots`` slots, and wait until the driver knows it."""
    wanted = (f"{jobs.HOSTS[0]}:1", f"{jobs.HOSTS[1]}:{slots}")
    changed = job.set_hosts(wanted)
    since = changed.mono if job.side == "ours" else changed.wall
    return job.time_until("hosts at the driver", lambda: known(job).get(wanted), since=since, deadline=DEADLINE_S)


def known(job: jobs.Job) -> dict[tuple[str, ...], float]:
    """Return when the driver first knew each host list, by the clock of its side."""
    if job.side == "ours":
        lists = [
            (record.mono, tuple(f"{host}:{slots}" for host, slots in record.get("hosts").items()))
            for record in job.records("published")
        ]
    else:
        lists = job.answers()
    first: dict[tuple[str, ...], float] = {}
    for moment, hosts in lists:
        first.setdefault(hosts, moment)
    return first


CASE: Final = Case(
    name="hosts-change-to-driver",
    about="the hosts file is rewritten; the driver knows",
    figures=(Figure(QUANTITY, "median", bar_s=BAR_S), Figure(QUANTITY, "p99", bar_s=BAR_S)),
    measure=measure,
    repeats=2,
)
