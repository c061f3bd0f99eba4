"""What of the work of a job is in its weights, from the steps that its ranks stamped. Pure.

Steps are counted in the state, which goes back with the weights. So of each step's number, up to the newest, the last
world that did it is the one whose work is in the weights, and what was done under that number before is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.steps import Stamp


@dataclass(frozen=True, slots=True)
class Work:
    """Rank-steps, each of them a batch: ``kept`` are in the weights at the end, ``done`` were done at all."""

    kept: int
    done: int

    @property
    def lost(self) -> float:
        """The share of what was done that is not in the weights."""
        return 1.0 - self.kept / self.done if self.done else 0.0


def work(stamps: Sequence[Stamp], *, since: float, until: float) -> Work:
    """What was done from ``since`` to ``until`` (mono). A job that falls back behind ``since`` loses that, too."""
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
