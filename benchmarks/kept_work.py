"""The part of a job's work that is in its weights, from the steps that its ranks stamp. Pure.

Steps are counted in the state, which rolls back with the weights. So each step number up to the newest counts once, for
the last world that did it. Earlier work under that number is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.steps import Stamp


@dataclass(frozen=True, slots=True)
class Work:
    """Steps of all ranks, each with one batch. ``kept``: those in the weights at the end; ``done``: all of them."""

    kept: int
    done: int

    @property
    def lost(self) -> float:
        """The share of ``done`` that is not in the weights."""
        return 1.0 - self.kept / self.done if self.done else 0.0


def work(stamps: Sequence[Stamp], *, since: float, until: float) -> Work:
    """Return the work from ``since`` to ``until`` (mono). If the job rolls back to a step before ``since``, that is
    lost, too."""
    firsts = [stamp for stamp in stamps if stamp.rank == 0 and stamp.mono <= until]
    done = sum(stamp.size for stamp in firsts if stamp.mono > since)
    return Work(_kept(firsts) - _kept(stamp for stamp in firsts if stamp.mono <= since), done)


def _kept(firsts: Iterable[Stamp]) -> int:
    sizes: dict[int, int] = {}
    newest = 0
    for stamp in sorted(firsts, key=lambda each: each.mono):
        newest = stamp.step
        sizes[newest] = stamp.size
    return sum(size for step, size in sizes.items() if step <= newest)
