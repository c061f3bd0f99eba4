"""Prevents core dumps of processes with the job's key and secrets in memory. Small, because the agent loads it."""

from __future__ import annotations

import resource

_usual: tuple[int, int] | None = None


def forbid() -> None:
    """Disable core dumps of this process and its children."""
    global _usual
    if _usual is None:
        _usual = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, _usual[1]))


def allow(pid: int = 0) -> None:
    """Restore the limit before :func:`forbid` in a child or in this process. Raises ``OSError`` if the process has
    ended."""
    if _usual is not None:
        resource.prlimit(pid, resource.RLIMIT_CORE, _usual)
