"""No core dumps of processes with the job's key and its secrets in memory. Small: the agent loads this, too."""

from __future__ import annotations

import resource

_usual: tuple[int, int] | None = None


def forbid() -> None:
    """Let this process, and what it starts, dump no core."""
    global _usual
    if _usual is None:
        _usual = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, _usual[1]))


def usual() -> tuple[int, int] | None:
    """The limit that was found by :func:`forbid`, soft and hard; None if that was not called."""
    return _usual


def allow(pid: int = 0) -> None:
    """Give a child, or this process, the limit that was found by :func:`forbid`. Raises ``OSError`` if it has gone."""
    if _usual is not None:
        resource.prlimit(pid, resource.RLIMIT_CORE, _usual)
