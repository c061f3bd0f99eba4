"""Who started what: names that carry their owner, and an environment mark that children inherit.

An *owner* is one life of one process: ``PID-STARTTIME``, the start time in clock
ticks since boot, so that a reused process number is not taken for the owner.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

MARK = "HVD_TEST_ID"
"""Environment variable holding ``OWNER-N``; nested sessions append theirs after a slash."""

PREFIX = "hvdt-"
"""Begins the name of every namespace and temporary directory that tests make; the owner follows."""


def stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on. Raises ``OSError`` if the process is gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which ``pid`` started, or None if it is gone or a zombie."""
    try:
        state, *rest = stat(pid)
    except OSError:
        return None
    return None if state in "ZX" else int(rest[18])


def parent(pid: int) -> int:
    """The parent of a process. Raises ``OSError`` if the process is gone."""
    return int(stat(pid)[1])


def ancestors(pid: int) -> Iterator[int]:
    """Parent, grandparent and so on."""
    with contextlib.suppress(OSError):
        while pid := parent(pid):
            yield pid


def owner() -> str:
    """This process, as names carry it."""
    return f"{os.getpid()}-{start_time(os.getpid())}"


def owner_is_dead(name: str) -> bool:
    """True if ``name`` is ``PID-STARTTIME…`` and that process is no more. False for foreign names."""
    pid, _, rest = name.partition("-")
    started = rest.partition("-")[0]
    if not (pid.isdigit() and started.isdigit()):
        return False
    return start_time(int(pid)) != int(started)


def pids() -> Iterator[int]:
    """Every process of the machine that this process can see."""
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def environment(pid: int) -> dict[str, str]:
    """The environment ``pid`` was started with; empty if it is gone or not ours to read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return {key: value for key, equals, value in pairs if equals}


def marked(variable: str, wanted: Callable[[str], bool]) -> list[int]:
    """Live processes, other than this one, whose ``variable`` has a ``wanted`` value."""
    found = []
    for pid in pids():
        if pid != os.getpid():
            value = environment(pid).get(variable)
            if value is not None and wanted(value) and start_time(pid) is not None:
                found.append(pid)
    return found


def command_line(pid: int) -> str:
    """What ``pid`` runs, for people."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return f"[{pid}]"
    return " ".join(raw.decode(errors="replace").split("\0")).strip() or f"[{pid}]"


def kill(victims: Iterable[int], *, timeout: float = 30.0) -> None:
    """SIGKILL each process by number and wait until all are gone (or zombies of another parent)."""
    alive = {pid: started for pid in victims if (started := start_time(pid)) is not None}
    for pid in alive:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + timeout
    while any(start_time(pid) == started for pid, started in alive.items()) and time.monotonic() < deadline:
        time.sleep(0.005)
