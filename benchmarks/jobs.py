"""One elastic job of either side, in a folder of its own. It leaves nothing behind.

Both launchers run under our agent. The agent's pipe closes at the end of the benchmark, however that ends. Then the
agent ends all processes that the launcher started, even those in sessions of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import psutil

from benchmarks import steps
from benchmarks.model import BenchmarkError, Side, Timing, Trial
from hvd_elastic_ext.core.journal import Record, read

T = TypeVar("T")

HOSTS: Final = ("localhost", "127.0.0.1", "127.1")
"""Names of this machine that *both* launchers accept as separate hosts, and on which they start processes without
ssh."""
AGENT: Final = "hvd_elastic_ext.agent"
GRACE_S: Final = 10.0
"""Long, but rarely needed: when stock's launcher is killed, its semaphores stay in /dev/shm."""
START_TIMEOUT_S: Final = 90.0
"""Limit in seconds until the first step: interpreters import torch, perhaps on a busy machine."""
LAST_LINES: Final = 25
LOOK_S: Final = 0.02
"""Pause between two looks at files. Figures come from stamps, not from the time of a look."""
POLL_S: Final = 1.0
"""Stock's pause between two runs of its script. The time from run to run is longer, and is measured."""
ROOT: Final = Path(__file__).parent.parent
TRAINEE: Final = Path(__file__).with_name("trainee.py")
TRAINEE_LIMIT_S: Final = 240
ELASTIC_TIMEOUT_S: Final = 120
SCRIPT: Final = """#!/bin/sh
# What it is about to say, with the time in nanoseconds, then the saying of it.
list=$(cat "{hosts}")
echo "$(date +%s%N)" $list >>"{asked}"
echo "$list"
"""


class TooLate(BenchmarkError):
    """An event did not come before the deadline."""


@dataclass(frozen=True, slots=True)
class Instant:
    """One moment by two clocks: ``mono`` for our journal and the stamps, ``wall`` for shell scripts."""

    mono: float
    wall: float


def now() -> Instant:
    """Return the present moment."""
    return Instant(time.monotonic(), time.time())


@dataclass(frozen=True, slots=True)
class Shape:
    """The hosts at a job's start, and its greatest number of processes.

    A host is a name, with one process, or ``name:slots``. Both launchers get ``options``; only ours gets ``ours``.
    ``within``: a command that runs the launcher's command line. All traffic uses ``interface``.
    """

    hosts: tuple[str, ...]
    max_np: int
    options: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    interface: str = ""

    @property
    def num_proc(self) -> int:
        return sum(int(line.rpartition(":")[2]) for line in lines(self.hosts))


class Job:
    """A running job: its hosts file, its steps, its journal (ours) or the calls of its script (stock)."""

    def __init__(self, side: Side, folder: Path) -> None:
        self.side = side
        self._folder = folder
        self.hosts = folder / "hosts"
        self.journal = folder / "journal.jsonl"
        self.asked = folder / "asked"
        self.stamps_file = folder / "stamps"
        self._log = folder / "log"
        self._stamps: list[steps.Stamp] = []
        self._offset = 0
        self._agent: subprocess.Popen[bytes] | None = None

    def set_hosts(self, lines: Sequence[str]) -> Instant:
        """Replace the hosts file. Return the moment just before."""
        fresh = self._folder / "hosts.new"
        fresh.write_text("".join(f"{line}\n" for line in lines))
        moment = now()
        fresh.replace(self.hosts)
        return moment

    def start(self, shape: Shape, command: Sequence[str]) -> None:
        """Start the launcher, without waiting."""
        self.launch([*shape.within, *self._launcher(shape), *command])

    def launch(self, argv: Sequence[str]) -> None:
        """Start ``argv`` under an agent, without waiting."""
        with self._log.open("ab") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", AGENT],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # its messages; the job's output goes to standard error
                stderr=log,
                env=environ(os.environ, self._folder),
                start_new_session=True,
            )
        start = {"do": "start", "slot": 0, "argv": list(argv), "cwd": str(self._folder), "grace_s": GRACE_S}
        orders = ({**start, "output": "stderr", "commits": 0, "core": True}, {"do": "finish"})
        assert self._agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a wait for the job will notice
            self._agent.stdin.write(b"".join(json.dumps(order).encode() + b"\n" for order in orders))
            self._agent.stdin.flush()

    def _launcher(self, shape: Shape) -> list[str]:
        size = ["-np", str(shape.num_proc), "--min-np", "1", "--max-np", str(shape.max_np)]
        size += ["--elastic-timeout", str(ELASTIC_TIMEOUT_S), *shape.options]
        if self.side == "ours":
            source = ["--hosts-file", str(self.hosts), "--journal", str(self.journal), *shape.ours]
            source += ["--job", self._folder.name]  # no other job on this machine has this name
            source += ["--network-interfaces", shape.interface] if shape.interface else []
            return [sys.executable, "-m", "hvd_elastic_ext.cli", "run", *source, *size]
        script = self._folder / "discover.sh"
        script.write_text(SCRIPT.format(hosts=self.hosts, asked=self.asked))
        script.chmod(0o755)
        return [
            horovodrun(),
            *size,
            "--host-discovery-script",
            str(script),
            *("--network-interfaces", shape.interface or "lo"),
        ]

    def stamps(self) -> list[steps.Stamp]:
        """Return every step so far, in the order of writing."""
        with contextlib.suppress(FileNotFoundError), self.stamps_file.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                stamp = steps.parse(line.decode())
                if stamp is None:
                    break
                self._offset += len(line)
                self._stamps.append(stamp)
        return self._stamps

    def notified(self) -> list[tuple[float, int]]:
        """Return when training processes learned of a change (mono), with their pids."""
        try:
            lines = self.stamps_file.with_name("stamps.notified").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(float(mono), int(pid)) for mono, pid in whole]

    def broadcasts(self) -> list[float]:
        """Return the seconds of each broadcast: those of the rank that came to it last."""
        seconds: dict[str, float] = {}
        for line in self.stamps_file.with_name("stamps.broadcasts").read_text().splitlines(keepends=True):
            number, _, took = line.partition(" ")
            if line.endswith("\n"):
                seconds[number] = min(float(took), seconds.get(number, float("inf")))
        return list(seconds.values())

    def records(self, event: str) -> list[Record]:
        """Return the journal's lines of one event (ours only)."""
        try:
            with self.journal.open() as lines:
                return [record for record in read(lines) if record.event == event]
        except FileNotFoundError:
            return []

    def answers(self) -> list[tuple[float, tuple[str, ...]]]:
        """Return when the discovery script answered (Unix seconds), and its answers (stock only)."""
        try:
            lines = self.asked.read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(int(words[0]) / 1e9, tuple(words[1:])) for words in whole]

    def wait_for(self, what: str, found: Callable[[], T | None], *, timeout: float) -> T:
        """Wait for the first true value of ``found``, and return it.

        Raises :class:`TooLate` after ``timeout`` seconds, and :class:`BenchmarkError` if the job ends first.
        """
        deadline = time.monotonic() + timeout
        while True:
            value = found()
            if value:
                return value
            if self.ended() is not None:
                raise BenchmarkError(f"the job ended while {what} was waited for: {self.last_output()}")
            if time.monotonic() > deadline:
                raise TooLate(f"no {what} in {timeout:g} s: {self.last_output()}")
            time.sleep(LOOK_S)

    def time_until(self, what: str, found: Callable[[], float | None], *, since: float, deadline: float) -> Timing:
        """Return the seconds from ``since`` to the moment that ``found`` returns; a lower bound after ``deadline``
        seconds."""
        try:
            return Timing(self.wait_for(what, found, timeout=deadline) - since)
        except TooLate:
            if self.side == "ours":
                sys.stderr.write(f"no {what} in {deadline:g} s; the job's last lines:\n{self._last_lines()}\n")
            return Timing(deadline, at_least=True)

    def ended(self) -> float | None:
        """The present time (mono) if the job has ended; None if it runs."""
        return time.monotonic() if self._agent is None or self._agent.poll() is not None else None

    def settle(self, size: int, *, steps_each: int, timeout: float = START_TIMEOUT_S) -> None:
        """Wait until each rank of a world of ``size`` has done ``steps_each`` steps."""

        def found() -> bool:
            return steps.settled(self.stamps(), size=size, steps=steps_each)

        self.wait_for(f"steady world of {size}", found, timeout=timeout)

    def kill(self, pid: int) -> Instant:
        """Kill a process with ``kill -9``. Return the moment just before. Raises :class:`BenchmarkError` for a process
        that is not of this job."""
        assert self._agent is not None
        try:
            if self._agent.pid not in [parent.pid for parent in psutil.Process(pid).parents()]:
                raise BenchmarkError(f"process {pid} is none of this job's")
            moment = now()
            os.kill(pid, signal.SIGKILL)
        except (psutil.NoSuchProcess, ProcessLookupError):
            raise BenchmarkError(f"process {pid} ended before it could be killed") from None
        return moment

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this job, except the agent around it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._agent.pid).children(recursive=True) if self._agent else []
        return []

    def last_output(self) -> str:
        """Return the last line of the job's output, for messages about failures."""
        try:
            lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            lines = []
        return lines[-1].strip()[:300] if lines else "it wrote nothing"

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines of the job's output that are not empty."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-count:]

    def wrote(self, words: str) -> int:
        """Return the number of output lines of the job that contain ``words``."""
        try:
            return sum(words in line for line in self._log.read_text(errors="replace").splitlines())
        except OSError:
            return 0

    def _last_lines(self) -> str:
        """Return the last lines of the output and of the journal, which show what the job did last."""
        lines = []
        for path in (self._log, self.journal):
            with contextlib.suppress(OSError):
                lines += path.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join(f"    {line[:300]}" for line in lines)

    def end(self) -> None:
        """End the job and all its processes. Returns when they have ended."""
        if self._agent is None:
            return
        assert self._agent.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._agent.stdin.close()
        try:
            self._agent.wait(timeout=3 * GRACE_S + 10)
        except subprocess.TimeoutExpired:
            _kill_tree(self._agent.pid)
            self._agent.wait()


def _kill_tree(pid: int) -> None:
    root = psutil.Process(pid)
    for process in [*root.children(recursive=True), root]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def figures(
    trial: Trial, script: str, *, ranks: int, arguments: Sequence[int | str], timeout: float
) -> dict[str, list[float]]:
    """Run a script of ``benchmarks/scripts`` once in a world of ``ranks``. Return its figures."""
    result = trial.folder / "figures.json"
    program = [sys.executable, "-m", f"benchmarks.scripts.{script}", str(result), trial.side, *map(str, arguments)]
    world = [horovodrun(), "-np", str(ranks), "-H", f"localhost:{ranks}", "--gloo"] if ranks > 1 else []
    job = Job(trial.side, trial.folder)
    try:
        job.launch([*world, *program])
        job.wait_for("figures", result.exists, timeout=timeout)
    finally:
        job.end()
    measured: dict[str, list[float]] = json.loads(result.read_text())
    return measured


@contextlib.contextmanager
def training(
    trial: Trial, shape: Shape, *, slow: tuple[str, float] | None = None, limit_s: float = TRAINEE_LIMIT_S
) -> Iterator[Job]:
    """Run a job of ``trainee.py`` within the context; it also ends after ``limit_s``. On the host ``slow[0]`` it needs
    ``slow[1]`` seconds more to start."""
    command = [sys.executable, str(TRAINEE), trial.side, str(trial.folder / "stamps"), f"{limit_s:g}"]
    command += map(str, slow or ())
    with running(trial, shape, command=command) as job:
        yield job


@contextlib.contextmanager
def running(trial: Trial, shape: Shape, *, command: Sequence[str]) -> Iterator[Job]:
    """Run a job of ``command`` within the context."""
    job = Job(trial.side, trial.folder)
    job.set_hosts(lines(shape.hosts))
    try:
        job.start(shape, command)
        yield job
    finally:
        job.end()


def poll_period(moments: Sequence[float]) -> float:
    """Return the seconds between runs of stock's script, as seen in ``moments``; its pause if no run was seen."""
    between = [later - earlier for earlier, later in itertools.pairwise(moments)]
    return statistics.median(between) if between else POLL_S


def between_polls(job: Job, chance: random.Random) -> None:
    """Wait for a random time between two runs of stock's script, so that their phase has no influence."""
    time.sleep(chance.uniform(0.0, poll_period([moment for moment, _ in job.answers()])))


def lines(hosts: Sequence[str]) -> list[str]:
    """Return the lines of a hosts file. A host without a number gets one slot."""
    return [host if ":" in host else f"{host}:1" for host in hosts]


def environ(base: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return ``base`` without settings for other jobs, with one thread a process and temporary files in ``folder``."""
    kept = {name: value for name, value in base.items() if not name.startswith(("HVD_ELASTIC_", "HOROVOD_"))}
    return {**kept, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}


def horovodrun() -> str:
    """Return the ``horovodrun`` of this interpreter. Raises :class:`BenchmarkError` if there is none."""
    beside = Path(sys.executable).with_name("horovodrun")
    found = str(beside) if beside.is_file() else shutil.which("horovodrun")
    if found is None:
        raise BenchmarkError("horovodrun is not installed; scripts/setup brings it")
    return found
