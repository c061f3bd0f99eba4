"""Finds the owner of what tests start: names contain their owner, and children inherit an environment mark.

An *owner* is one process: ``PID-STARTTIME``. The start time, in clock ticks since boot, tells it from a later process
with the same pid.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

MARK = "HVD_TEST_ID"
"""Environment variable with ``OWNER-N``; nested sessions append theirs after a slash."""

PREFIX = "hvdt-"
"""The beginning of the name of every namespace and temporary directory that tests make; the owner follows."""


def stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on. Raises ``OSError`` if there is no such process."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def start_time(pid: int) -> int | None:
    """Return the start of ``pid`` in clock ticks since boot; None if it does not exist or is a zombie."""
    try:
        state, *rest = stat(pid)
    except OSError:
        return None
    return None if state in "ZX" else int(rest[18])


def parent(pid: int) -> int:
    """Return the parent of a process. Raises ``OSError`` if there is no such process."""
    return int(stat(pid)[1])


def ancestors(pid: int) -> Iterator[int]:
    """Yield parent, grandparent and so on."""
    with contextlib.suppress(OSError):
        while pid := parent(pid):
            yield pid


def owner() -> str:
    """Return this process in the form that names contain."""
    return f"{os.getpid()}-{start_time(os.getpid())}"


def owner_is_dead(name: str) -> bool:
    """True if ``name`` is ``PID-STARTTIME…`` and that process does not exist any more. False for other names."""
    pid, _, rest = name.partition("-")
    started = rest.partition("-")[0]
    if not (pid.isdigit() and started.isdigit()):
        return False
    return start_time(int(pid)) != int(started)


def pids() -> Iterator[int]:
    """Return all processes of the machine that this process can see."""
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def environment(pid: int) -> dict[str, str]:
    """Return the environment with which ``pid`` was started; empty if it does not exist or may not be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return {key: value for key, equals, value in pairs if equals}


def marked(variable: str, wanted: Callable[[str], bool]) -> list[int]:
    """Return the living processes, other than this one, whose ``variable`` has a ``wanted`` value."""
    found = []
    for pid in pids():
        if pid != os.getpid():
            value = environment(pid).get(variable)
            if value is not None and wanted(value) and start_time(pid) is not None:
                found.append(pid)
    return found


def command_line(pid: int) -> str:
    """Return the command line of ``pid``, for messages."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return f"[{pid}]"
    return " ".join(raw.decode(errors="replace").split("\0")).strip() or f"[{pid}]"


def kill(victims: Iterable[int], *, timeout: float = 30.0) -> None:
    """Kill each process with SIGKILL, and wait until all have ended (or are zombies of another parent)."""
    alive = {pid: started for pid in victims if (started := start_time(pid)) is not None}
    for pid in alive:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + timeout
    while any(start_time(pid) == started for pid, started in alive.items()) and time.monotonic() < deadline:
        time.sleep(0.005)
