"""Steps from the traces that processes write: which of them were done again. Pure, except for :func:`read`.

A job counts steps in its State. So a lost step is done again under the same number: by a rank that has done it before,
or in a world of another size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple


class Traced(NamedTuple):
    """One step of one process. ``mono``: when it was done; ``process``: the name of its file."""

    mono: float
    size: int
    rank: int
    count: int
    fingerprint: str
    process: str


def read(folder: Path) -> list[Traced]:
    """Return every step of every process, in order of time. An incomplete last line is ignored."""
    found = []
    for path in folder.iterdir():
        for line in path.read_text().splitlines(keepends=True):
            words = line.split()
            if len(words) == 5 and line.endswith("\n"):
                mono, size, rank, count, fingerprint = words
                found.append(Traced(float(mono), int(size), int(rank), int(count), fingerprint, path.name))
    return sorted(found)


def done_again(steps: Sequence[Traced]) -> list[Traced]:
    """Return for each repetition of a lost step the first process that did it again."""
    again = []
    for of_one in _by_count(steps).values():
        world: list[Traced] = []
        for step in of_one:
            if world and not _same_world(world, step):
                again.append(step)
                world = []
            world.append(step)
    return sorted(again)


def _same_world(world: Sequence[Traced], step: Traced) -> bool:
    others = {(each.rank, each.process) for each in world}
    ranks, processes = {rank for rank, _ in others}, {process for _, process in others}
    return step.size == world[0].size and step.rank not in ranks and step.process not in processes


def missing(steps: Sequence[Traced]) -> list[int]:
    """Return the step numbers from 1 to the highest one that no process did."""
    counts = _by_count(steps)
    return [count for count in range(1, max(counts, default=0) + 1) if count not in counts]


def divided(steps: Sequence[Traced]) -> list[int]:
    """Return the steps after which ranks had different states."""
    return [count for count, of_one in _by_count(steps).items() if len({step.fingerprint for step in of_one}) > 1]


def _by_count(steps: Iterable[Traced]) -> dict[int, list[Traced]]:
    counts: dict[int, list[Traced]] = defaultdict(list)
    for step in steps:
        counts[step.count].append(step)
    return dict(sorted(counts.items()))
