"""How soon an agent is welcomed at the control port while another user's connections occupy it.

The port is the launcher's own, in a process without a job; sockets, frames and signatures are real. Stock Horovod has
no such port. A foreign connection is closed after 5 s, or sooner if there is little room.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks import jobs
from benchmarks.model import BenchmarkError, Case, Figure, Timing, Trial, Values
from benchmarks.scripts.control_port import ADDRESS, JOB, KEY
from hvd_elastic_ext.core.messages.wire import AgentWire

ALONE: Final = "agent's first packet to its welcome, nobody else there"
IDLE: Final = "the same, 2,000 silent connections of another user"
AGAIN: Final = "the same, each returns within 2 s after it is closed"
STORM: Final = "the same, 5,000 that return at once"
CONNECTIONS, QUICK_CONNECTIONS = 2000, 20
MANY, QUICK_MANY = 5000, 40
ROUNDS, QUICK_ROUNDS = 6, 1
JOINS, QUICK_JOINS = 20, 2
FEW_JOINS, QUICK_FEW_JOINS = 5, 1
BETWEEN_S: Final = 0.05
"""Seconds between two agents: some come while many foreign connections are closed at once, others in a calm moment."""
AGAIN_S: Final = 1.0
NEVER_S: Final = math.inf
BAR: Final = 2.0
START_S: Final = 60.0
DEADLINE_S: Final = 60.0


def measure(trial: Trial) -> Values:
    """Let agents join one after another: alone, beside silent connections, beside connections that are opened again."""
    rounds, joins, few = trial.pick((ROUNDS, JOINS, FEW_JOINS), (QUICK_ROUNDS, QUICK_JOINS, QUICK_FEW_JOINS))
    some, many = trial.pick((CONNECTIONS, MANY), (QUICK_CONNECTIONS, QUICK_MANY))
    found = trial.folder / "port"
    values: dict[str, list[Timing]] = {ALONE: [], IDLE: []}
    with program(trial, "control_port", found) as control:
        port = int(control.wait_for("port", lambda: read(found), timeout=START_S))
        for _ in range(rounds):
            values[ALONE] += joined(port, joins)
            with foreign_connections(trial, port, count=some, pause=NEVER_S):
                values[IDLE] += joined(port, joins)
        with foreign_connections(trial, port, count=some, pause=AGAIN_S):
            values[AGAIN] = joined(port, rounds * joins)
        with foreign_connections(trial, port, count=many, pause=0.0):
            values[STORM] = joined(port, few)
    return values


@contextlib.contextmanager
def foreign_connections(trial: Trial, port: int, *, count: int, pause: float) -> Iterator[None]:
    """Keep this many connections of another user open. All of them are accepted before the context begins.

    Raises :class:`BenchmarkError` if none is left at the end.
    """
    told = Path(tempfile.mkdtemp(prefix="told", dir=trial.folder)) / "standing"
    with program(trial, "foreign_connections", port, count, pause, told) as crowd:
        crowd.wait_for("foreign connections", lambda: numbers(told)[1] >= count, timeout=START_S)
        yield
        if not numbers(told)[0]:
            raise BenchmarkError(
                "all foreign connections were closed before the last agent came: this machine is too busy"
            )


def numbers(told: Path) -> tuple[int, int]:
    """Return how many foreign connections are open, and how many were accepted so far."""
    words = read(told).split()
    return (int(words[0]), int(words[1])) if words else (0, 0)


@contextlib.contextmanager
def program(trial: Trial, name: str, *arguments: object) -> Iterator[jobs.Job]:
    """Run a script of ``benchmarks/scripts`` within the context."""
    job = jobs.Job(trial.side, Path(tempfile.mkdtemp(prefix=name, dir=trial.folder)))
    try:
        job.launch([sys.executable, "-m", f"benchmarks.scripts.{name}", *map(str, arguments)])
        yield job
    finally:
        job.end()


def joined(port: int, count: int) -> list[Timing]:
    """Return how long each of ``count`` agents took to join, one after another."""
    times = []
    for number in range(count):
        time.sleep(BETWEEN_S)
        times.append(join(port, f"h{number}"))
    return times


def join(port: int, host: str) -> Timing:
    """Join as an agent of the job. Return the time from the first packet to the welcome."""
    wire = AgentWire(KEY)
    who = {"event": "hello", "job": JOB, "host": host, "agent": f"a-{host}", "incarnation": 0, "pid": os.getpid()}
    begun = time.monotonic()
    try:
        with socket.create_connection((ADDRESS, port), timeout=DEADLINE_S) as connection:
            while not wire.ready:
                heard(wire, connection)
            connection.sendall(wire.seal({**who, "facts": {}, "seats": {}}))
            while not any(order["do"] == "welcome" for order in heard(wire, connection)):
                pass
    except TimeoutError:
        return Timing(DEADLINE_S, at_least=True)
    return Timing(time.monotonic() - begun)


def heard(wire: AgentWire, connection: socket.socket) -> list[dict[str, object]]:
    """Receive orders. Raises :class:`BenchmarkError` if the launcher closes the connection."""
    data = connection.recv(4096)
    if not data:
        raise BenchmarkError("an agent was sent away")
    return [dict(order) for order in wire.feed(data)]


def read(path: Path) -> str:
    """Return the text of a file; empty if there is none yet."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def missing() -> str | None:
    """Return what this machine lacks, and how to get it; None if nothing."""
    return None if os.geteuid() == 0 else "needs root, to be another user: sudo make bench"


CASE: Final = Case(
    name="join-crowded",
    about=f"agents come to the control port while {CONNECTIONS:,} connections of another user stand there",
    figures=(
        Figure(ALONE),
        Figure(ALONE, "p99"),
        Figure(IDLE, floor=ALONE, bar_floor=BAR),
        Figure(IDLE, "p99"),
        Figure(AGAIN),
        Figure(STORM),
    ),
    measure=measure,
    repeats=3,
    sides=("ours",),
    missing=missing,
)
