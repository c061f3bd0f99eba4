"""Processes of this machine in ``/proc``: descendants, and open files."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def ancestors(pid: int) -> list[int]:
    """``pid`` and its parents up to process 1; empty if there is no such process."""
    line: list[int] = []
    while pid > 0:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return []
        line.append(pid)
        # The name in parentheses may contain anything.
        pid = int(stat.rpartition(")")[2].split()[1])
    return line


def family(root: int) -> list[int]:
    """Return ``root`` and its descendants; empty if there is no such process."""
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return sorted(pid for pid in pids if root in ancestors(pid))


def holder_of(name: str, *, among: Collection[int]) -> tuple[int, Path] | None:
    """Return the process with an open file of this name, and the file; of parent and child the parent."""
    holders = {pid: path for pid in among if (path := _opened(pid, name)) is not None}
    first = [pid for pid in holders if not holders.keys() & ancestors(pid)[1:]]
    return (first[-1], holders[first[-1]]) if first else None


def _opened(pid: int, name: str) -> Path | None:
    with contextlib.suppress(OSError):  # it has ended
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                path = Path(str(descriptor.readlink()).removesuffix(" (deleted)"))
                if path.name == name:
                    return path
    return None


def kill_at_once(pids: Iterable[int]) -> None:
    """Stop all, then kill all, as a power loss would: none sees another one's end."""
    doomed = list(pids)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
