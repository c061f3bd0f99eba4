"""Messages about a launcher that holds its job's folder and does not answer: its state, and the remedy."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.commands import job_mark, socket_name
from hvd_elastic_ext.io import process_tree
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
            f"the launcher ({holder or 'its pid is not known'}) does not answer: it is busy or hangs; ask again",
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
        f"the launcher, pid {pid}, does not answer within {ANSWER_S:g} s: {what}; ask again. If it stays so: "
        f"`kill -9 {pid}`, then the same `hvd-elastic run` command, which takes over what still trains",
        False,
    )


# --- agents that still live


class AgentState(Enum):
    """What is known of the processes on a host."""

    LIVE = "an agent of the job lives there"
    ENDED = "the host is this machine, and no agent of the job lives"
    UNKNOWN = "the host is another machine"


def agents_here(key: bytes) -> dict[str, int]:
    """By name of its socket, the pid of each agent of the job with this key on this machine, of this user's."""
    ours = (int(name.name) for name in Path("/proc").iterdir() if name.name.isdigit())
    return found_in({pid: process_tree.open_files(pid) for pid in ours if pid != os.getpid()}, key)


def found_in(files: Mapping[int, Iterable[str]], key: bytes) -> dict[str, int]:
    """The same, by the open files of processes: an agent holds its notice file, and so do its forks. Pure."""
    folder, found = f".{job_mark(key)}", dict[str, int]()
    for pid, paths in sorted(files.items()):
        for path in map(Path, paths):
            if path.parent.name.endswith(folder) and path.suffixes[-2:] == [".sock", ".notice"]:
                found.setdefault(path.name.removesuffix(".notice"), pid)
    return found


def agent_states(
    hosts: Iterable[str], agents: Mapping[str, int], is_here: Callable[[str], bool]
) -> dict[str, AgentState]:
    """The state of the processes on each host. ``agents``: see :func:`agents_here`. ``is_here`` may take long."""
    return {
        host: AgentState.LIVE
        if socket_name(host) in agents
        else AgentState.ENDED
        if is_here(host)
        else AgentState.UNKNOWN
        for host in hosts
    }
