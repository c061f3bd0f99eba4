"""How many files this process may open: the soft limit is raised to the hard one, and one line says what is too few."""

from __future__ import annotations

import resource
import sys
from typing import Final

MAX_FILE_LIMIT: Final = 1 << 16
"""The limit that is set, unless more is needed. With a limit of 10⁹, programs that close all possible descriptors take
minutes.
"""
AGENT: Final = 16
"""Files that an agent has open itself, with some room."""
AGENT_PER_SLOT: Final = 10
"""Files that a slot costs its agent: pipes of its output, its supervisor and its link."""


def agent_files(slots: int) -> int:
    """Open files that the agent of a host with this many slots needs."""
    return AGENT + AGENT_PER_SLOT * slots


def present_limit() -> int:
    """The soft limit; a very large number for none."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_limit(need: int) -> int:
    """Raise the soft limit as far as useful and the hard one allows; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    wanted = max(MAX_FILE_LIMIT, need)
    target = wanted if hard == endless else min(wanted, hard)
    if soft == endless or soft >= target:
        return wanted if soft == endless else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):
        return soft
    return target


def too_few(limit: int, need: int, who: str) -> str | None:
    """The message if ``limit`` open files are too few for ``who`` to work at all; None if they suffice."""
    if need <= limit:
        return None
    return (
        f"this process may open {limit} files (ulimit -n), and {who} needs at least {need}; "
        f"raise the hard limit (ulimit -Hn {need} or more) and start again"
    )
