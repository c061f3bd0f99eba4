"""What is noted of the steps since a commit, and how the ranks of a later world share a lost step. Pure.

Little has to be noted. The sampler of the commit tells which samples a step has, and the world's size and shares which
rank takes which of them. Generators are seeded for each step, by a seed of the job, the step and the rank. What is left
are the world and the learning rates, and both seldom change: so the notes are runs of equal steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from hvd_elastic_ext.core.json_text import to_text


@dataclass(frozen=True, slots=True)
class Lanes:
    """How the records of a stream were assigned."""

    epoch: int
    ranges: str
    """All records that were left then."""
    workers: int
    """Loader processes of each rank."""
    drop_last: bool


@dataclass(frozen=True, slots=True)
class World:
    """The world that did a step, as far as its parts depend on it."""

    generation: int
    size: int
    rows: tuple[int, ...] | None = None
    """The samples of each rank in a whole global batch; None: equally many."""
    source: str = ""
    """The name of the sampler or stream in the State."""
    lanes: Lanes | None = None
    """Of a stream; None: it is a sampler."""
    total: int = 0
    """The samples of a whole global batch over a sampler."""
    largest: int | None = None
    """The most samples of a micro-batch over a sampler; None: as many as there are."""


@dataclass(frozen=True, slots=True)
class Run:
    """Steps, one after another, of one world with the same learning rates."""

    world: World
    rates: tuple[float, ...]
    """Of all parameter groups of all optimizers, in their order."""
    steps: int = 1
    at: int = 0
    """The number of the first one in the assignment of a stream."""

    def is_followed_by(self, run: Run) -> bool:
        """Whether the steps of ``run`` go on as these."""
        at = self.at if run.world.lanes is None else self.at + self.steps
        return self.rates == run.rates and at == run.at and self.world == run.world


Runs = tuple[Run, ...]


def joined(runs: Iterable[Run]) -> Runs:
    """Return the same steps in as few runs as possible."""
    made: list[Run] = []
    for run in runs:
        add(made, run)
    return tuple(made)


def add(runs: list[Run], run: Run) -> None:
    """Add the steps of ``run`` at the end, to the last run if they are like its steps."""
    last = runs[-1] if runs else None
    if last is not None and last.is_followed_by(run):
        runs[-1] = Run(last.world, last.rates, last.steps + run.steps, last.at)
    else:
        runs.append(run)


def count(runs: Iterable[Run]) -> int:
    """Return the number of steps."""
    return sum(run.steps for run in runs)


def each(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield one run of one step for each step."""
    for run in runs:
        for number in range(run.steps):
            yield Run(run.world, run.rates, 1, run.at + (0 if run.world.lanes is None else number))


def without_first(runs: Runs) -> Runs:
    """Return all steps but the first one."""
    first, *rest = runs
    at = first.at + (first.world.lanes is not None)
    return (Run(first.world, first.rates, first.steps - 1, at), *rest) if first.steps > 1 else tuple(rest)


def encode(runs: Runs) -> bytes:
    """Return the runs as JSON, the same on each machine."""
    worlds = list(dict.fromkeys(run.world for run in runs))
    return to_text(
        {
            "worlds": [
                [
                    *(world.generation, world.size, world.rows, world.source, world.lanes and astuple(world.lanes)),
                    *(world.total, world.largest),
                ]
                for world in worlds
            ],
            "runs": [[worlds.index(run.world), run.steps, run.at, *run.rates] for run in runs],
        }
    ).encode()


def decode(data: bytes) -> Runs:
    """Return the runs that :func:`encode` wrote. Raises ``ValueError``, ``TypeError`` or ``LookupError`` for others."""
    found = json.loads(data)
    worlds = [
        World(
            int(generation),
            int(size),
            None if rows is None else tuple(map(int, rows)),
            str(source),
            None if lanes is None else _lanes(*lanes),
            int(total),
            None if largest is None else int(largest),
        )
        for generation, size, rows, source, lanes, total, largest in found["worlds"]
    ]
    return tuple(
        Run(worlds[world], tuple(map(float, rates)), int(steps), int(at)) for world, steps, at, *rates in found["runs"]
    )


def _lanes(epoch: Any, ranges: Any, workers: Any, drop_last: Any) -> Lanes:
    return Lanes(int(epoch), str(ranges), int(workers), bool(drop_last))


# --- who takes which part of a lost step


@dataclass(frozen=True, slots=True)
class Deal:
    """One lost step, as a rank of the present world takes part in it."""

    run: Run
    """The step."""
    size: int
    """The ranks of the present world."""
    parts: tuple[int, ...]
    """The ranks of the step's own world whose micro-batches this rank takes, in this order. Empty: none is left."""
    most: int = 1
    """The most parts that a rank of the present world takes."""

    @property
    def padding(self) -> int:
        """How many parts this rank does with weight 0: all ranks make equally many passes, so that a collective within
        the loop over micro-batches finds all of them."""
        return max(0, max(1, self.most) - len(self.parts))

    @property
    def factor(self) -> float:
        """What weights are multiplied by, so that the mean over the present ranks is that over the former ones."""
        return self.size / self.run.world.size


def deal(owners: Sequence[int | None], size: int) -> tuple[tuple[int, ...], ...]:
    """Return which ranks of a former world of ``size`` each present rank stands for.

    ``owners``: the rank that each present rank had in that world, None for newcomers. A survivor takes its own part
    first. The parts of lost ranks go to those who have fewest, so to newcomers first, and then in turn.
    """
    taken: list[list[int]] = [[] if owner is None else [owner] for owner in owners]
    for lost in sorted(set(range(size)).difference(owner for owner in owners if owner is not None)):
        min(taken, key=len).append(lost)
    return tuple(map(tuple, taken))


def seed(base: int, *, step: int, rank: int, place: tuple[int, int] = (0, 0)) -> int:
    """Return the seed of the generators for one rank's part of a step: 64 bits. ``step``: the optimizer's steps before
    it. ``place``: the epoch of its samples and where they begin, as an optimizer may step once for several of them."""
    digest = hashlib.blake2b(b"%d %d %d %d %d" % (base, step, rank, *place), digest_size=8).digest()
    return int.from_bytes(digest, "little")
