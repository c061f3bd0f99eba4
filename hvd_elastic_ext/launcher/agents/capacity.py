"""What many hosts cost the launcher: heartbeats and open files. Pure, but for asking the kernel for more files."""

from __future__ import annotations

import math
import resource
from typing import Final, NamedTuple

HOSTS_A_SECOND: Final = 128.0
"""Heartbeats a second that the launcher takes in its stride."""
FIGURES_A_SECOND: Final = 48.0
"""And of how many hosts it takes in figures."""
MOST_SELDOM: Final = 5
"""Figures that are older than so many heartbeats are of little use."""
FILES_EACH: Final = 6
"""Open files that a host costs: its connection, and what its agent's start hangs on."""
FILES_WRITTEN: Final = 4
"""And a slot, where output goes to files: two by rank, and two by seat for what a process says before it has a rank."""
FILES_OWN: Final = 256
"""Files that the launcher has open itself, strangers at its port among them."""
FILES_MOST: Final = 1 << 16
"""Asked for at first. Where the kernel allows a milliard, programs that close all they might have take minutes."""


class Pace(NamedTuple):
    """``heartbeat_s``: seconds between two heartbeats of an agent.

    ``figures_every``: one of so many tells of all of the host's processes how far they are; the others only say that
    the agent is there, and of which process it has heard nothing.
    """

    heartbeat_s: float = 1.0
    figures_every: int = 1


USUAL: Final = Pace()


def pace(asked_s: float, *, timeout_s: float, hosts: int, progress_timeout_s: float | None = None) -> Pace:
    """How often agents are to beat.

    As often as was asked for, but more seldom from :data:`HOSTS_A_SECOND` hosts a second on, as far as three
    heartbeats still fit into the time after which silence is a failure. All of them with figures, but fewer from
    :data:`FIGURES_A_SECOND` on, as far as three of those fit into the time after which no progress is one.
    """
    heartbeat_s = max(asked_s, min(timeout_s / 3, hosts / HOSTS_A_SECOND))
    seldom = math.ceil(hosts / heartbeat_s / FIGURES_A_SECOND)
    often_enough = MOST_SELDOM if progress_timeout_s is None else int(progress_timeout_s / 3 / heartbeat_s)
    return Pace(heartbeat_s, max(1, min(seldom, often_enough, MOST_SELDOM)))


def files_for(hosts: int, *, written: int = 0) -> int:
    """Open files that a launcher needs for so many hosts; ``written``: slots whose output goes to files."""
    return FILES_OWN + FILES_EACH * hosts + FILES_WRITTEN * written


def too_few_files(hosts: int, limit: int, *, written: int = 0) -> str | None:
    """What is to be said where only ``limit`` files may be open; None if they will do."""
    need = files_for(hosts, written=written)
    if need <= limit:
        return None
    who = f"{hosts} hosts and the output of {written} slots (--output-filename)" if written else f"{hosts} hosts"
    return (
        f"this process may open {limit} files and {who} need about {need}: "
        f"not all of them will get in; raise the hard limit (ulimit -Hn {need}) and start again"
    )


def raise_file_limit(hosts: int, *, written: int = 0) -> int:
    """Raise this process's soft limit of open files as far as the hard one allows and it has to be; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    wanted = max(FILES_MOST, files_for(hosts, written=written))
    target = wanted if hard == endless else min(wanted, hard)
    if soft == endless or soft >= target:
        return wanted if soft == endless else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):
        return soft
    return target
