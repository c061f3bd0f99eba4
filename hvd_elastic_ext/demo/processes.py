"""Processes of this machine in ``/proc``: those with an open file, and the end of many at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def holder_of(name: str, *, among: Iterable[int]) -> tuple[int, Path] | None:
    """Return the first process with an open file of this name, and the file."""
    opened = ((pid, _opened(pid, name)) for pid in among)
    return next(((pid, path) for pid, path in opened if path is not None), None)


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
