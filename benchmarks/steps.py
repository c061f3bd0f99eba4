"""Facts from the steps that training processes stamp. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stamp:
    """One training step of one process. ``mono``: ``time.monotonic``, the same clock for all processes."""

    mono: float
    pid: int
    rank: int
    size: int
    step: int
    host: str


def parse(line: str) -> Stamp | None:
    """Read a line of the stamps file; None if it is incomplete."""
    words = line.split()
    if len(words) != 6 or not line.endswith("\n"):
        return None
    mono, pid, rank, size, step, host = words
    return Stamp(float(mono), int(pid), int(rank), int(size), int(step), host)


def first_at(stamps: Iterable[Stamp], *, size: int, after: float) -> Stamp | None:
    """Return the earliest step of a world of ``size`` after the moment ``after``."""
    return min((s for s in stamps if s.size == size and s.mono > after), key=lambda s: s.mono, default=None)


def members(stamps: Sequence[Stamp]) -> dict[int, Stamp]:
    """Return the newest step of each rank of the newest world."""
    if not stamps:
        return {}
    size = stamps[-1].size
    return {s.rank: s for s in stamps if s.size == size}


def settled(stamps: Sequence[Stamp], *, size: int, steps: int) -> bool:
    """Whether each of ``size`` ranks has done ``steps`` steps in a world of that size, the newest one."""
    newest = [s for s in stamps[-size * steps :] if s.size == size]
    return all(sum(s.rank == rank for s in newest) >= steps * 3 // 4 for rank in range(size))


def gaps(stamps: Iterable[Stamp], *, pid: int) -> list[tuple[float, float]]:
    """Return when each step of ``pid`` ended, and the seconds since the step before."""
    own = [s.mono for s in stamps if s.pid == pid]
    return [(later, later - earlier) for earlier, later in itertools.pairwise(own)]


def stall(stamps: Sequence[Stamp], *, pid: int, changed: float) -> float:
    """Return by how much the longest step of ``pid`` after ``changed`` exceeds its median step before.

    Raises ``ValueError`` if there are no steps before or after.
    """
    every = gaps(stamps, pid=pid)
    before = [gap for end, gap in every if end <= changed]
    after = [gap for end, gap in every if end > changed]
    if not before or not after:
        raise ValueError(f"process {pid} has {len(before)} steps before the change and {len(after)} after")
    return max(after) - statistics.median(before)
