"""The cost of an open page for the launcher of 512 hosts with 8 processes each: the page asks it for more than the
journal has.

As in ``large-job``, the launcher is real and its agents are simulated. Times with and without a page alternate.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from benchmarks.cases.dashboard.server import Page, served
from benchmarks.cases.resize.large_job import HOSTS, QUICK_HOSTS, SLOTS, cpu_share, large_job, launcher, settled
from benchmarks.model import Case, Figure, Timing, Trial, Values
from hvd_elastic_ext.core.journal import FOLDERS

CLOSED: Final = "launcher's CPU, no page open"
OPEN: Final = "launcher's CPU, a page open"
MORE: Final = "launcher's CPU, what a page adds"
BAR_PERCENT: Final = 1.0


def measure(trial: Trial) -> Values:
    """Measure a job in which nothing happens, with the page closed and open."""
    count, turns, seconds = trial.pick((HOSTS, 5, 20.0), (QUICK_HOSTS, 1, 1.0))
    hosts = tuple(f"h{number}:{SLOTS}" for number in range(count))
    closed, opened = list[float](), list[float]()
    with large_job(trial, hosts) as (job, told):
        settled(job, size=count * SLOTS, told=told)
        home, pid = job.journal.parent, launcher(job)
        words = (str(job.journal), "--state-dir", str(home / FOLDERS / home.name))
        with served(home, *words) as (_, url):
            for _ in range(turns):
                closed.append(100 * cpu_share(pid, seconds))
                with _read(Page(url, job=home.name)):
                    opened.append(100 * cpu_share(pid, seconds))
    more = [Timing(after - before) for before, after in zip(closed, opened, strict=True)]
    return {CLOSED: [Timing(share) for share in closed], OPEN: [Timing(share) for share in opened], MORE: more}


@contextlib.contextmanager
def _read(page: Page) -> Iterator[None]:
    """Wait until the launcher was asked. Then read all that the server sends, as a browser does."""
    page.first("now", lambda text: '"launcher":true' in text.replace(" ", ""))
    reader = threading.Thread(target=page.read_all)
    reader.start()
    try:
        yield
    finally:
        page.hang_up()
        reader.join()
        page.close()


CASE: Final = Case(
    name="dashboard-launcher",
    about=f"the launcher of {HOSTS} simulated hosts with {SLOTS} processes each, with a page open and without",
    figures=(
        Figure(CLOSED, unit="% of a core"),
        Figure(OPEN, unit="% of a core"),
        Figure(MORE, bar_s=BAR_PERCENT, unit="% of a core"),
    ),
    measure=measure,
    repeats=1,
    sides=("ours",),
)
