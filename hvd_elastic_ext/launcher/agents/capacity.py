"""What many hosts cost the launcher: heartbeats and open files. Pure, except for :func:`raise_file_limit`."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from hvd_elastic_ext.io.file_limits import agent_files, raise_limit, too_few

MAX_HEARTBEATS_PER_S: Final = 128.0
"""Heartbeats a second that the launcher handles easily."""
MAX_FULL_HEARTBEATS_PER_S: Final = 32.0
"""Full heartbeats (with the figures of all processes) a second that it handles."""
MAX_FIGURES_EVERY: Final = 5
"""At least one heartbeat in this many is full."""
FILES_PER_HOST: Final = 6
"""Open files that a host costs: its connection, and the pipes of its agent's start."""
FILES_PER_SLOT: Final = 4
"""Open files that a slot costs where output goes to files: two by rank, and two by slot for output before the rank."""
OWN_FILES: Final = 256
"""Files that the launcher has open itself, unauthenticated connections among them."""
LEAST_OWN_FILES: Final = 40
"""Files without which a launcher cannot even start."""


class HeartbeatPace(NamedTuple):
    """``heartbeat_s``: seconds between two heartbeats of an agent.

    ``figures_every``: one heartbeat in this many reports all processes of the host. The others report only that the
    agent lives, and which processes are silent.
    """

    heartbeat_s: float = 1.0
    figures_every: int = 1


DEFAULT_PACE: Final = HeartbeatPace()


def heartbeat_pace(
    asked_s: float, *, timeout_s: float, hosts: int, progress_timeout_s: float | None = None
) -> HeartbeatPace:
    """How often agents send heartbeats.

    As often as the user asked, unless all hosts together would send more than :data:`MAX_HEARTBEATS_PER_S`. At least
    three heartbeats fit into the time after which silence is a failure. All of them carry figures, unless that makes
    more than :data:`MAX_FULL_HEARTBEATS_PER_S`. At least three with figures fit into the time after which missing
    progress is a failure.
    """
    heartbeat_s = max(asked_s, min(timeout_s / 3, hosts / MAX_HEARTBEATS_PER_S))
    seldom = math.ceil(hosts / heartbeat_s / MAX_FULL_HEARTBEATS_PER_S)
    often_enough = math.inf if progress_timeout_s is None else progress_timeout_s / 3 / heartbeat_s
    return HeartbeatPace(heartbeat_s, max(1, int(min(seldom, often_enough, MAX_FIGURES_EVERY))))


def files_for(hosts: int, *, written: int = 0) -> int:
    """Open files that a launcher needs for this number of hosts. ``written``: slots with output that goes to files."""
    return OWN_FILES + FILES_PER_HOST * hosts + FILES_PER_SLOT * written


def too_few_files(hosts: int, limit: int, *, written: int = 0) -> str | None:
    """The message if ``limit`` open files are too few; None if they suffice."""
    need = files_for(hosts, written=written)
    if need <= limit:
        return None
    who = f"{hosts} hosts and the output of {written} slots (--output-filename)" if written else f"{hosts} hosts"
    return (
        f"this process may open {limit} files and {who} need about {need}: "
        f"some will not connect; raise the hard limit (ulimit -Hn {need}) and start again"
    )


def far_too_few_files(limit: int, *, hosts: int, slots_here: int) -> str | None:
    """The message if nothing would work with ``limit`` open files; None if something does.

    ``slots_here``: those of this machine, whose agent inherits the limit.
    """
    need = max(LEAST_OWN_FILES + FILES_PER_HOST * hosts, agent_files(slots_here))
    return too_few(limit, need, "this job")


def raise_file_limit(hosts: int, *, written: int = 0) -> int:
    """Raise this process's soft limit of open files as far as needed and the hard one allows; return the new limit."""
    return raise_limit(files_for(hosts, written=written))
