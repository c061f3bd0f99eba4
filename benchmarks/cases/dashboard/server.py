"""`hvd-elastic dashboard` of a job with 500 hosts and 1,000,000 lines: the time until the page is complete, the delay
of its updates, and the cost of the server. ``dashboard-browser`` measures the time in the browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import psutil

from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values
from hvd_elastic_ext.core.journal import FILE, FOLDERS
from hvd_elastic_ext.core.json_text import to_text

FIRST: Final = "first request, to the page with its first word of the job"
WHOLE: Final = "first request, to the whole job"
AGAIN: Final = "second page, to the whole job"
UPDATE: Final = "line of the journal, to the page"
MEMORY: Final = "memory of the server"
CPU: Final = "processor of the server with a page open"
HOSTS: Final = {f"host-{number}": 8 for number in range(500)}
WORLD_LINES: Final = 5000
UPDATES: Final = 10
DEADLINE_S: Final = 120.0


def write_journal(path: Path, lines: int) -> float:
    """Write a journal in which a host crashes every 5000 steps. Return the ``mono`` of its last line."""
    mono, step, generation = 0.0, 0, 0

    def line(event: str, **fields: object) -> str:
        return to_text({"t": 1.79e9 + mono, "mono": mono, "generation": generation, "event": event, **fields}) + "\n"

    with path.open("w") as file:
        file.write(line("started", run="r", job="large", command="train.py", checkpoints=None, output=None))
        file.write(line("published", number=1, hosts=HOSTS, added=list(HOSTS), removed=[], departing=[]))
        written = 2
        while written < lines:
            failed = f"host-{generation % len(HOSTS)}"
            reason = "crashed: exit code 1"
            for slot in range(8):
                file.write(line("exited", host=failed, slot=slot, rank=slot, code=1, cause="crashed", reason=reason))
            for rank in range(100):
                file.write(line("rolled_back", host="host-1", rank=rank, step=step, steps_lost=2))
            generation, mono = generation + 1, mono + 5.0
            cause = "worker failed" if generation > 1 else "start"
            file.write(line("resized", cause=cause, size=3992, hosts=HOSTS, added=[], removed=[], failed={failed: 8}))
            written += 109
            for _ in range(min(WORLD_LINES, max(0, lines - written))):
                step, mono, written = step + 1, mono + 1.0, written + 1
                values = {"epoch": 1, "loss": 2.0 / step, "batch_size": 32}
                file.write(
                    line("stepped", host="host-1", step=step, rank=0, size=3992, world=generation, values=values)
                )
    return mono


class Page:
    """An open page: reads the server's events."""

    def __init__(self, url: str, job: str = "large") -> None:
        parts = urlsplit(url)
        self.asked = time.perf_counter()
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=DEADLINE_S)
        for name in ("/", "/charts.js", "/page.js", "/page.css"):
            self._connection.request("GET", name)
            self._connection.getresponse().read()
        path, headers = f"/api/live?job={job}", {"Authorization": f"Bearer {parts.fragment}"}
        self._connection.request("GET", path, headers=headers)
        self._answer = self._connection.getresponse()

    def first(self, name: str, holds: Callable[[str], bool] = lambda _: True) -> float:
        """Return when the first part of this name came for which ``holds`` is true."""
        event = ""
        for raw in self._answer:
            text = raw.decode()
            if text.startswith("data: ") and name in ("", event) and holds(text):
                return time.perf_counter()
            event = text[7:].strip() if text.startswith("event: ") else ""
        raise BenchmarkError("the server has closed the page")

    def read_all(self) -> None:
        """Read all events until another thread calls :meth:`hang_up`."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            for _ in self._answer:
                pass

    def hang_up(self) -> None:
        """End the stream of events."""
        self._connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextmanager
def served(folder: Path, *words: str) -> Iterator[tuple[psutil.Process, str]]:
    """Run a server with these arguments. Yield its process and its address."""
    command = [sys.executable, "-m", "hvd_elastic_ext.cli", "dashboard", "--listen", "0", *words]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url.startswith("http://"):
            raise BenchmarkError("the server did not start")
        yield psutil.Process(process.pid), url
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def measure(trial: Trial) -> Values:
    """Measure one server."""
    home = trial.folder / FOLDERS / "large"
    home.mkdir(parents=True)
    journal = home / FILE
    mono = write_journal(journal, trial.pick(1_000_000, 20_000))
    with served(trial.folder, "large") as (server, url):
        page = Page(url)
        first = page.first("") - page.asked
        whole = page.first("timeline") - page.asked
        updates = [_update(journal, page, mono + 10.0 * (number + 1), number) for number in range(UPDATES)]
        busy = _busy(server, trial.pick(10.0, 2.0))
        other = Page(url)
        again = other.first("timeline") - other.asked
        memory = server.memory_info().rss / 1e6
        other.close()
        page.close()
    figures = {FIRST: [first], WHOLE: [whole], AGAIN: [again], UPDATE: updates, MEMORY: [memory], CPU: [100 * busy]}
    return {name: [Timing(value) for value in values] for name, values in figures.items()}


def _update(journal: Path, page: Page, mono: float, number: int) -> float:
    reason = f"stall number {number}"
    entry = {"t": 1.79e9 + mono, "mono": mono, "generation": 1, "event": "stalled", "ranks": [1], "hosts": [reason]}
    with journal.open("a") as file:
        file.write(json.dumps({**entry, "reason": reason}) + "\n")
    written = time.perf_counter()
    return page.first("timeline", lambda text: reason in text) - written


def _busy(server: psutil.Process, seconds: float) -> float:
    """Return the share of a core that the server uses while a page is open."""
    before, begun = sum(server.cpu_times()[:2]), time.perf_counter()
    time.sleep(seconds)
    return (sum(server.cpu_times()[:2]) - before) / (time.perf_counter() - begun)


CASE: Final = Case(
    name="dashboard",
    about="the page of a job with 500 hosts and 1,000,000 lines in its journal",
    figures=(
        Figure(FIRST, bar_s=1.0),
        Figure(WHOLE),
        Figure(AGAIN, bar_s=1.0),
        Figure(UPDATE, bar_s=0.5),
        Figure(UPDATE, statistic="maximum"),
        Figure(MEMORY, bar_s=150.0, unit="MB"),
        Figure(CPU, unit="% of a core"),
    ),
    measure=measure,
    repeats=1,
    sides=("ours",),
)
