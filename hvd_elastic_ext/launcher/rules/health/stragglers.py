"""Processes that are slower than the others for many steps. Pure.

In synchronous training all wait for the slowest, so ``step_s`` must leave out the wait in collectives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from hvd_elastic_ext.launcher.membership.rendezvous import Seat

FACTOR: Final = 1.5
SUSTAINED: Final = 20
"""Steps in a row. A slow batch, a checkpoint or a page fault is over by then; a hot or shared device is not."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """``seconds`` is its own median step, ``median`` that of the median process."""

    seat: Seat
    seconds: float
    median: float

    @property
    def text(self) -> str:
        """One line for the log and the journal: seat, seconds a step, and how many times the median that is."""
        return f"{self.seat} takes {self.seconds:.3g} s a step, {self.seconds / self.median:.2g} × the median"


def stragglers(step_times: Mapping[Seat, Sequence[float]]) -> list[Straggler]:
    """Name the processes whose last ``SUSTAINED`` steps *each* took over ``FACTOR`` times the median, slowest first.

    ``step_times`` holds each process's recent steps, newest last. The median is
    taken over the processes' own medians. With fewer than three processes
    there is no result.
    """
    typical = {seat: median(times[-SUSTAINED:]) for seat, times in step_times.items() if len(times) >= SUSTAINED}
    if len(typical) < 3:
        return []
    usual = median(typical.values())
    found = [
        Straggler(seat, seconds, usual)
        for seat, seconds in typical.items()
        if usual > 0 and all(time > FACTOR * usual for time in step_times[seat][-SUSTAINED:])
    ]
    return sorted(found, key=lambda straggler: -straggler.seconds)


@dataclass(frozen=True, slots=True)
class Watch:
    """Stragglers that were reported or drained already: each is reported once and drained at most once."""

    named: frozenset[Seat] = frozenset()
    drained: frozenset[Seat] = frozenset()

    def look(self, found: Collection[Straggler], *, drain: bool = False) -> tuple[Watch, list[Straggler], list[Seat]]:
        """Return ``(next watch, whom to report, whom to drain)``.

        One that caught up and falls behind again is reported again, but never
        drained twice: if the first drain did not help, another only costs a resize.
        """
        seats = frozenset(straggler.seat for straggler in found)
        report = [straggler for straggler in found if straggler.seat not in self.named]
        leave = [straggler.seat for straggler in found if drain and straggler.seat not in self.drained][:1]
        return replace(self, named=seats, drained=self.drained.union(leave)), report, leave
