"""Finds out whether a process without heartbeats still works.

The heartbeat thread needs the interpreter lock, which a long call into C (a regular expression, a parser, a compiler)
may hold for minutes. Meanwhile the first thread uses the processor. A stopped, frozen or deadlocked process does not.
"""

from __future__ import annotations

import os
from typing import Final

from hvd_elastic_ext.io.process_tree import stat_of

WORKING: Final = 0.05
"""Smallest share of a core that the first thread of a working process uses, also on a crowded machine."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class CpuActivity:
    """Compares the processor time of one process between looks."""

    def __init__(self) -> None:
        self._last: tuple[int, float, float] | None = None

    def look(self, now: float, pid: int, used_s: float | None) -> bool:
        """Return whether the process has worked since the last look. ``used_s``: see :func:`used_s`."""
        last, self._last = self._last, None if used_s is None else (pid, now, used_s)
        if last is None or used_s is None or last[0] != pid or now <= last[1]:
            return False
        return used_s - last[2] >= WORKING * (now - last[1])


def used_s(pid: int) -> float | None:
    """Return the processor seconds of the first thread of a process; None if there is no such process."""
    try:
        fields = stat_of(f"{pid}/task/{pid}")
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, ValueError, IndexError):
        return None
