"""The launcher's standard input. A process on this machine that starts as rank 0 reads it itself, as with horovodrun.

The launcher never reads it: it is handed to the agents of this machine as a descriptor, and by them to that process.
So a slow or closed reader stops nobody, and nothing is kept in memory.
"""

from __future__ import annotations

import array
import fcntl
import logging
import os
import stat
import termios
from collections.abc import Mapping
from typing import Any, Final

from hvd_elastic_ext.launcher.membership.rendezvous import Seat

log = logging.getLogger(__name__)

REMEDY: Final = "let the script read a file that the host has"


class StandardInput:
    """``descriptor``: a copy that agents inherit; None if there is nothing to pass on. ``why_not``: why no process of
    this job can have it; empty if one can.
    """

    def __init__(self, descriptor: int | None, *, why_not: str = "") -> None:
        self.descriptor = descriptor
        self._why_not = why_not
        self._reader: Seat | None = None
        self._told = False

    @classmethod
    def of(cls, descriptor: int, *, why_not: str = "") -> StandardInput:
        """Of an open descriptor; nothing is passed on of a terminal, the null device, or one that is closed."""
        return cls(os.dup(descriptor) if _is_input(descriptor) else None, why_not=why_not)

    def close(self) -> None:
        """Close the launcher's copy."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def goes_to(self, seat: Seat, *, rank: int, facts: Mapping[str, Any]) -> bool:
        """Whether the process that is about to start in ``seat`` reads it: the first one that starts as rank 0, and
        those that start in that slot after it, which read on. ``facts``: what the host's agent reports.
        """
        if self.descriptor is None or self._why_not:
            return False
        if self._reader is None and rank == 0:
            if facts.get("stdin"):
                self._reader = seat
            else:
                self._tell(f"rank 0 starts on {seat.host}, and only an agent that this launcher starts here has it")
        return seat == self._reader and bool(facts.get("stdin"))

    def world_begins(self) -> None:
        """Say so if nobody reads it: then rank 0 runs since an earlier launcher, or its engine has no input."""
        if self._reader is None:
            self._tell(self._why_not or "rank 0 was started by an earlier launcher")

    def _tell(self, why: str) -> None:
        if self._told or self.descriptor is None or not _has_something(self.descriptor):
            return
        self._told = True
        log.warning("standard input is not passed on: %s; %s", why, REMEDY)


def _is_input(descriptor: int) -> bool:
    try:
        found = os.fstat(descriptor)
        null = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.stat(os.devnull).st_rdev  # noqa: PTH116
    except OSError:
        return False
    return not (null or os.isatty(descriptor) or stat.S_ISDIR(found.st_mode))


def _has_something(descriptor: int) -> bool:
    """Whether there are bytes in it now; where that is not known, True."""
    try:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            return found.st_size > os.lseek(descriptor, 0, os.SEEK_CUR)
        waiting = array.array("i", [0])
        fcntl.ioctl(descriptor, termios.FIONREAD, waiting)
    except OSError:
        return True
    return waiting[0] > 0


NO_INPUT: Final = StandardInput(None)
