"""Messages about a launcher that holds its job's folder and does not answer: its state, and the remedy."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Final

from hvd_elastic_ext.io.process_tree import stat_of

ANSWER_S: Final = 2.0
"""How long a launcher may take to answer; one that works does so within milliseconds."""


STOPPED: Final = "T"


TRACED: Final = "t"


_HOLDER: Final = re.compile(r"pid (\d+) on host (\S+)")


def state_of(pid: int) -> str | None:
    """The state of a process as a letter, from ``/proc/PID/stat``; None if there is no such process here."""
    try:
        return stat_of(pid)[0].decode()
    except OSError:
        return None


def why(
    holder: str | None, *, here: str | None = None, state: Callable[[int], str | None] = state_of
) -> tuple[str, bool]:
    """Why there is no answer and what to do, in one line; and whether that state lasts.

    ``holder``: as :func:`state_folder.holder` names it; None if unknown. ``here``: this host's name. ``state``: returns
    the state of a process of this machine.
    """
    match = _HOLDER.fullmatch(holder or "")
    if match is None:
        return (
            f"the launcher ({holder or 'its pid is not known'}) gives no answer: it is busy or hangs; ask again",
            False,
        )
    pid, host = int(match[1]), match[2]
    if host != (here or socket.gethostname()):
        return f"the launcher is {holder}, and cannot be asked from here; ask on that host", False
    letter = state(pid)
    if letter == STOPPED:
        return f"the launcher, pid {pid}, is stopped (T): `kill -CONT {pid}` lets it go on", True
    if letter == TRACED:
        return f"the launcher, pid {pid}, is held by a debugger (t): let it go on there", True
    what = "its pid is not visible here" if letter is None else f"it is busy or hangs (state {letter})"
    return (
        f"the launcher, pid {pid}, gives no answer within {ANSWER_S:g} s: {what}; ask again. If it stays so: "
        f"`kill -9 {pid}`, then the same `hvd-elastic run` command, which takes over what still trains",
        False,
    )
