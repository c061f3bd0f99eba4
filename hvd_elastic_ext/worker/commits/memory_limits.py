"""Checks, before the first commit, whether commits fit into the memory limit of a container or batch system.

A process above its cgroup's limit is killed without a message: the job would end at its second commit, or at the first
checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hvd_elastic_ext.core.messages.slot_protocol import COMMITS

UNLIMITED: Final = 1 << 60
"""Bytes that no machine has. A cgroup of the first version shows a number a little below 2**63 for "no limit"."""


@dataclass(frozen=True, slots=True)
class Level:
    """One cgroup with a limit."""

    limit: int
    """The bytes that it allows."""
    used: int
    """The used bytes that the kernel cannot reclaim."""
    where: str
    """The file that says so."""

    @property
    def free(self) -> int:
        """Bytes left below the limit; negative if more is in use."""
        return self.limit - self.used


def memory_warning(
    *,
    commit_bytes: int,
    copies: int = 2,
    processes: int = 1,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> str | None:
    """Return a warning if commits of ``commit_bytes`` will not fit; None if they do, or if there is no limit.

    ``copies`` is 2, or 3 where checkpoints are written; ``processes`` counts those on this host that share the limit.
    A limit that cannot be read is ignored. Memory in use counts without the page cache, which the kernel reclaims.
    Commit memory that an earlier process has filled counts as in use already.
    """
    needed = processes * max(0, copies * commit_bytes - held_bytes(environ))
    level = min(levels(root), key=lambda level: level.free, default=None)
    if level is None or needed <= level.free:
        return None
    each = f" for each of {processes} processes" if processes > 1 else ""
    return (
        f"the memory limit of {_size(level.limit)} ({level.where}) is too small: {copies} copies of a commit of "
        f"{_size(commit_bytes)}{each} need {_size(needed, up=True)} beside the {_size(max(0, level.used), up=True)} "
        f"in use; raise it to {_size(level.used + needed, up=True)} at least"
    )


def held_bytes(environ: Mapping[str, str]) -> int:
    """Bytes in the commit memory that this process has inherited."""
    total = 0
    for word in environ.get(COMMITS, "").split(","):
        with contextlib.suppress(ValueError, OSError):
            total += os.fstat(int(word)).st_blocks * 512
    return total


def levels(root: Path) -> Iterator[Level]:
    """Yield each cgroup with a memory limit, from this process's own up to the topmost visible one."""
    for base, path, read in _hierarchies(root):
        # In a container the path may be the host's, while only its end is mounted: then only the mount's top is found.
        for place in [path, *path.parents]:
            level = read(base / place)
            if level is not None:
                yield level


def _hierarchies(root: Path) -> Iterator[tuple[Path, Path, Callable[[Path], Level | None]]]:
    """Yield the cgroups that count this process's memory: the mount, the path below it, and the reader of a cgroup."""
    mount = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # A process outside its namespace's top has a path that starts with "..".
        below = Path(*[part for part in path.split("/") if part not in ("", "..")])
        if "memory" in controllers.split(","):
            yield mount / "memory", below, _first_version
        elif not controllers:
            yield mount, below, _second_version


def _first_version(folder: Path) -> Level | None:
    limit = _number(folder / "memory.limit_in_bytes")
    if limit is None:
        return None
    used = _number(folder / "memory.usage_in_bytes") or 0
    stat = _table(folder / "memory.stat")
    cache = stat.get("total_cache", 0) - stat.get("total_shmem", 0)
    return Level(limit, used - max(0, cache), str(folder / "memory.limit_in_bytes"))


def _second_version(folder: Path) -> Level | None:
    limits = [(limit, name) for name in ("memory.max", "memory.high") if (limit := _number(folder / name)) is not None]
    if not limits:
        return None
    limit, name = min(limits)
    used = _number(folder / "memory.current") or 0
    stat = _table(folder / "memory.stat")
    # Memory of memfds counts as "file", too, but the kernel cannot reclaim it.
    cache = stat.get("file", 0) - stat.get("shmem", 0)
    return Level(limit, used - max(0, cache), str(folder / name))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None


def _number(path: Path) -> int | None:
    """The number in a file; None if there is no number, or if it means "no limit"."""
    text = (_text(path) or "").strip()
    return int(text) if text.isdecimal() and int(text) < UNLIMITED else None


def _table(path: Path) -> dict[str, int]:
    pairs = (line.partition(" ") for line in (_text(path) or "").splitlines())
    return {name: int(value) for name, _, value in pairs if value.isdecimal()}


def _size(number: int, *, up: bool = False) -> str:
    """Format in GiB or MiB with two digits, rounded such that a limit that is too small never looks like enough."""
    unit, name = (1 << 30, "GiB") if number >= 1 << 30 else (1 << 20, "MiB")
    hundredths = number * 100 / unit
    return f"{(math.ceil(hundredths) if up else math.floor(hundredths)) / 100:.2f} {name}"
