"""The daemon on a cluster: the delay until a pod's start and end are in the hosts file, and the daemon's cost.

The API server is the one of the tests (``tests/support/kube``), in a process of its own; the daemon runs as for a user.
Stock Horovod has no such daemon. The simplest alternative is measured beside it: a loop over raw events that keeps
names and replaces a file (``benchmarks/scripts/bare_watch.py``).

The hosts file is in memory (``/dev/shm``), as in ``docker/manifests``: the daemon waits for ``fsync``, which on a disk
takes the time of the disk. A file on a disk is measured, too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import jobs
from benchmarks.cases.resize.large_job import cpu_s
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values
from benchmarks.scripts.api_server import SELECTOR

REMOVED: Final = "pod deleted to hosts file without it"
ADDED: Final = "pod ready to hosts file with it, less --settle"
ON_DISK: Final = "the same removal, hosts file on a disk"
BARE: Final = "the same removal, a bare watch loop"
BUSY_REMOVED: Final = "pod deleted to hosts file without it, a busy loop beside each core"
BUSY_BARE: Final = "the same, a bare watch loop"
SYNCED: Final = "start of the process to 10,000 hosts in the file"
MEMORY: Final = "peak memory of the daemon"
LAG: Final = "pod deleted to hosts file without it, 1,000 changes a second"
BUSY: Final = "daemon's CPU, 1,000 changes a second"
IDLE: Final = "daemon's CPU, nothing happening"
PODS, QUICK_PODS = 1000, 50
NODES: Final = 100
CHANGES, QUICK_CHANGES = 100, 5
TURNS, QUICK_TURNS = 4, 1
MANY, QUICK_MANY = 10_000, 200
RATE: Final = 1000.0
RATE_S, QUICK_RATE_S = 60.0, 2.0
IDLE_S, QUICK_IDLE_S = 30.0, 1.0
GRACE_S: Final = 30.0
"""Seconds from the deletion of a pod to its end."""
LATER: Final = 1.05
"""Changes may take this many times longer than intended."""
SETTLE_S: Final = 0.1
BYTES: Final = 5000
READY_S: Final = 120.0
LATE_S: Final = 20.0
LOOK_S: Final = 0.0003
IN_MEMORY: Final = Path("/dev/shm")


class Cluster:
    """An API server with pods, in a process of its own."""

    def __init__(self, trial: Trial, pods: int, *, tls: bool = False) -> None:
        self.folder = trial.folder / "cluster"
        self.folder.mkdir()
        os.mkfifo(self.folder / "orders")
        self._orders = os.open(self.folder / "orders", os.O_RDWR)
        self.job = jobs.Job(trial.side, self.folder)
        words = ["benchmarks.scripts.api_server", self.folder, pods, NODES, BYTES, *(["tls"] if tls else [])]
        self.job.launch([sys.executable, "-m", *map(str, words)])
        self.job.wait_for("API server", self.kubeconfig.exists, timeout=READY_S)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def tell(self, *words: object) -> None:
        """Send an order; the server carries it out a moment later."""
        os.write(self._orders, (" ".join(map(str, words)) + "\n").encode())

    def done(self, order: str, name: object) -> float:
        """Wait until the server has carried out an order. Return when it did (mono)."""

        def found() -> float | None:
            lines = (self.folder / "done").read_text().splitlines()
            return next((float(line.split()[2]) for line in lines if line.startswith(f"{order} {name} ")), None)

        return self.job.wait_for(f"{order} {name}", found, timeout=READY_S)

    def end(self) -> None:
        self.job.end()
        os.close(self._orders)


class Follower:
    """A program that keeps a hosts file, in memory unless ``on_disk``."""

    def __init__(self, trial: Trial, name: str, *, on_disk: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=trial.folder))
        in_memory = IN_MEMORY.is_dir() and not on_disk
        self._place = Path(tempfile.mkdtemp(prefix="hvd-bench-", dir=IN_MEMORY)) if in_memory else self.folder
        # Kept open: tests that remove unused shared memory must see that it is in use.
        self._held = os.open(self._place, os.O_RDONLY | os.O_DIRECTORY)
        self.file = self._place / "followed"
        self.job = jobs.Job(trial.side, self.folder)

    def end(self) -> None:
        self.job.end()
        if self._place != self.folder:
            shutil.rmtree(self._place)
        os.close(self._held)

    def when(self, host: str, *, there: bool) -> float | None:
        """Return when the file was first seen with or without a host (mono); None after :data:`LATE_S`."""
        deadline, last = time.monotonic() + LATE_S, -1
        while (moment := time.monotonic()) < deadline:
            with contextlib.suppress(FileNotFoundError):
                number = self.file.stat().st_ino
                if number != last:
                    last = number
                    if (f"{host}.job.default.svc:1\n" in self.file.read_text()) is there:
                        return moment
            time.sleep(LOOK_S)
        return None

    def count(self) -> int:
        """Return the number of hosts in the file."""
        try:
            return self.file.read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0


@contextlib.contextmanager
def cluster(trial: Trial, pods: int, *, tls: bool = False) -> Iterator[Cluster]:
    made = Cluster(trial, pods, tls=tls)
    try:
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def following(
    trial: Trial, at: Cluster, *more: object, bare: bool = False, on_disk: bool = False
) -> Iterator[Follower]:
    """Run the daemon, with ``more`` options, or a bare loop, within the context."""
    one = Follower(trial, "bare" if bare else "on-disk" if on_disk else "daemon", on_disk=on_disk)
    argv = ["benchmarks.scripts.bare_watch", at.kubeconfig, SELECTOR, one.file]
    if not bare:
        argv = ["discover.cli", "--source", "kubernetes", "--kubeconfig", at.kubeconfig, "--selector", SELECTOR]
        argv += ["--admission-probe", "none", "--settle", SETTLE_S, "--slots", 1, "--hosts-file", one.file]
        argv += more
    try:
        one.job.launch([sys.executable, "-m", *map(str, argv)])
        yield one
    finally:
        one.end()


def pid_of(one: Follower) -> int:
    """Return the daemon's pid. Raises :class:`BenchmarkError` if there is none."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"discover.cli" in words and os.fsencode(one.file) in words and words[0].endswith(b"python"):
                    return int(entry.name)
    raise BenchmarkError("there is no daemon")


def between(begun: float, ended: float | None, *, less: float = 0.0) -> Timing:
    return Timing(LATE_S, at_least=True) if ended is None else Timing(ended - begun - less)


def removal(at: Cluster, one: Follower, name: str) -> Timing:
    """Delete a pod, and wait until the file does not have it."""
    at.tell("delete", name)
    gone = one.when(name, there=False)
    return between(at.done("delete", name), gone)


def addition(at: Cluster, one: Follower, name: str) -> Timing:
    at.tell("add", name)
    come = one.when(name, there=True)
    return between(at.done("add", name), come, less=SETTLE_S)


def measure_changes(trial: Trial) -> Values:
    """Remove and add pods one by one; then again with the file on a disk, and with the bare loop."""
    pods, changes = trial.pick((PODS, CHANGES), (QUICK_PODS, QUICK_CHANGES))
    with cluster(trial, pods) as at:
        with following(trial, at) as one:
            one.job.wait_for("first hosts file", lambda: one.count() == pods, timeout=READY_S)
            removed = [removal(at, one, f"p{number}") for number in range(changes)]
            added = [addition(at, one, f"q{number}") for number in range(changes)]
        with following(trial, at, on_disk=True) as disk:
            disk.job.wait_for("first hosts file", lambda: disk.count() == pods, timeout=READY_S)
            slower = [removal(at, disk, f"p{number}") for number in range(changes, 2 * changes)]
        with following(trial, at, bare=True) as other:
            other.job.wait_for("first hosts file", lambda: other.count() >= pods - changes, timeout=READY_S)
            bare = [removal(at, other, f"p{number}") for number in range(2 * changes, 3 * changes)]
    return {REMOVED: removed, ADDED: added, ON_DISK: slower, BARE: bare}


BUSY_LOOPS: Final = """
import os
for _ in range(1, os.cpu_count() or 1):
    if os.fork() == 0:
        break
while True:
    pass
"""


@contextlib.contextmanager
def busy_cores(trial: Trial) -> Iterator[None]:
    """Run as many busy loops as there are cores."""
    folder = trial.folder / "busy"
    folder.mkdir()
    job = jobs.Job(trial.side, folder)
    try:
        job.launch([sys.executable, "-c", BUSY_LOOPS])
        yield
    finally:
        job.end()


def measure_busy(trial: Trial) -> Values:
    """Remove pods one by one, in turns while the daemon follows and while the bare loop does."""
    pods, changes = trial.pick((PODS, CHANGES), (QUICK_PODS, QUICK_CHANGES))
    turns = trial.pick(TURNS, QUICK_TURNS)
    found: dict[bool, list[Timing]] = {False: [], True: []}
    with cluster(trial, pods) as at, busy_cores(trial):
        names = (f"p{number}" for number in range(pods))
        for _ in range(turns):
            for bare in (False, True):
                with following(trial, at, bare=bare) as one:
                    one.job.wait_for("first hosts file", lambda: one.count() > 0, timeout=READY_S)
                    found[bare] += [removal(at, one, next(names)) for _ in range(changes // turns)]
    return {BUSY_REMOVED: found[False], BUSY_BARE: found[True]}


def measure_many(trial: Trial) -> Values:
    """List all pods at once; then 1,000 changes a second with a deletion each second; then nothing."""
    pods = trial.pick(MANY, QUICK_MANY)
    rate_s, idle_s = trial.pick((RATE_S, IDLE_S), (QUICK_RATE_S, QUICK_IDLE_S))
    with cluster(trial, pods) as at:
        begun = time.monotonic()
        with following(trial, at) as one:
            one.job.wait_for("first hosts file", lambda: one.count() == pods, timeout=READY_S)
            synced = Timing(time.monotonic() - begun)
            pid, lags = pid_of(one), []
            began, before = time.monotonic(), cpu_s(pid)
            at.tell("change", f"{RATE:g}", f"{rate_s:g}")
            last = began
            for number in range(int(rate_s) - 1):
                lags.append(removal(at, one, f"p{10 * number}"))
                last = time.monotonic()
                time.sleep(max(0.0, began + number + 1.0 - time.monotonic()))
            took = at.done("change", f"{RATE:g}") - began
            if not trial.quick:
                refuse_slow(took, rate_s)
            busy = Timing(100 * (cpu_s(pid) - before) / (time.monotonic() - began))
            # The deleted pods still have to end, which causes events.
            grace = trial.pick(GRACE_S, 0.0)
            time.sleep(max(0.0, last + grace - time.monotonic()) + 2.0)
            began, before = time.monotonic(), cpu_s(pid)
            time.sleep(idle_s)
            idle = Timing(100 * (cpu_s(pid) - before) / (time.monotonic() - began))
            peak = Timing(peak_mb(pid))
    return {SYNCED: [synced], MEMORY: [peak], LAG: lags, BUSY: [busy], IDLE: [idle]}


def refuse_slow(took: float, wanted: float) -> None:
    """Raise :class:`BenchmarkError` if the changes took clearly longer (s) than ``wanted``: then they were too few a
    second."""
    if took > LATER * wanted:
        raise BenchmarkError(
            f"the API server made {RATE * wanted / took:,.0f} changes a second instead of {RATE:,.0f}: "
            "the machine is too slow or too busy to measure at that rate; try again when nothing else runs"
        )


def peak_mb(pid: int) -> float:
    """Return the peak memory of a process in MB (10^6 bytes)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return float(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


CASES: Final = (
    Case(
        name="cluster-changes",
        about=f"{PODS:,} pods on a cluster; pods go and come",
        figures=(
            Figure(REMOVED),
            Figure(REMOVED, "p99", bar_s=0.02),
            Figure(ADDED),
            Figure(ADDED, "p99", bar_s=0.02),
            Figure(ON_DISK, "p99"),
            Figure(BARE, "p99"),
        ),
        measure=measure_changes,
        repeats=1,
        sides=("ours",),
    ),
    Case(
        name="cluster-busy",
        about=f"{PODS:,} pods on a cluster, and a busy loop beside each core; pods go",
        figures=(
            Figure(BUSY_REMOVED, floor=BUSY_BARE, bar_floor=1.5),
            Figure(BUSY_REMOVED, "p99", floor=BUSY_BARE, bar_floor=1.5),
            Figure(BUSY_BARE),
            Figure(BUSY_BARE, "p99"),
        ),
        measure=measure_busy,
        repeats=1,
        sides=("ours",),
    ),
    Case(
        name="cluster-many",
        about=f"{MANY:,} pods on a cluster: the first list, {RATE:,.0f} changes a second, nothing",
        figures=(
            Figure(SYNCED, bar_s=3.0),
            Figure(MEMORY, bar_s=136.3, unit="MB"),  # 130 MiB
            Figure(LAG, "maximum", bar_s=0.5),
            Figure(BUSY, unit="% of a core"),
            Figure(IDLE, bar_s=0.2, unit="% of a core"),
        ),
        measure=measure_many,
        repeats=1,
        sides=("ours",),
    ),
)
