"""World size, throughput and loss as functions of time."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from hvd_elastic_ext.report.timeline import Moment, number, of, values, whole

MOST_BINS: Final = 120
SHORTEST_BIN_S: Final = 0.5
STEPS_A_BIN: Final = 5
"""Bins are wide enough for this many typical steps, or throughput would flicker between whole numbers."""


@dataclass(frozen=True, slots=True)
class World:
    """From ``at`` on (seconds since the start) there were ``size`` workers; 0 before and after the job."""

    at: float
    size: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Mean throughput over the ``width`` seconds from ``at`` on; samples where the journal knows them."""

    at: float
    width: float
    steps_per_s: float
    samples_per_s: float | None


@dataclass(frozen=True, slots=True)
class Loss:
    """Training loss after a step."""

    at: float
    step: int | None
    loss: float


def world_sizes(moments: Sequence[Moment]) -> tuple[World, ...]:
    """The size of every world formed; 0 when a job began, went to sleep or ended.

    A launcher after whose start there are steps before there is a new world has found one that lives.
    """
    sizes: list[World] = []
    told = of(moments, "started", "resized", "slept", "finished", "stepped")
    for moment, following in zip_longest(told, told[1:]):
        found = sizes and following is not None and following.record.event == "stepped"
        if moment.record.event == "stepped" or (moment.record.event == "started" and found):
            continue
        size = whole(moment.record.get("size")) if moment.record.event == "resized" else 0
        if size is not None:
            sizes.append(World(moment.at, size))
    return tuple(sizes)


def losses(moments: Sequence[Moment]) -> tuple[Loss, ...]:
    """Every loss that a worker reported and that is a finite number.

    A step's line carries the values as they stood when the optimizer stepped, so
    the very first one knows of no loss yet, only of what the script began with.
    """
    return tuple(
        Loss(moment.at, whole(moment.record.get("step")), loss)
        for moment in of(moments, "stepped")
        if (loss := number(values(moment.record).get("loss"))) is not None and moment.record.get("step") != 1
    )


def throughput(moments: Sequence[Moment], *, typical: float) -> tuple[Rate, ...]:
    """Steps (and samples) per second in equal bins from the first step to the last; empty below two steps.

    Where only some steps were journalled, each line counts for those since the line before.
    """
    steps = of(moments, "stepped")
    if len(steps) < 2 or steps[-1].at <= steps[0].at:
        return ()
    begin, span = steps[0].at, steps[-1].at - steps[0].at
    wanted = max(SHORTEST_BIN_S, STEPS_A_BIN * typical, span / MOST_BINS)
    count = max(1, int(span / wanted))
    width = span / count
    bins: list[list[tuple[Moment, int]]] = [[] for _ in range(count)]
    # The first step ended at the very edge: its work lies before the first bin.
    for step, done in zip(steps[1:], _steps_done(steps), strict=True):
        bins[min(count - 1, int((step.at - begin) / width))].append((step, done))
    return tuple(_rate(inside, begin + i * width, width=width) for i, inside in enumerate(bins))


def _rate(steps: Sequence[tuple[Moment, int]], at: float, *, width: float) -> Rate:
    samples = [(_samples(step), done) for step, done in steps]
    known = [each * done for each, done in samples if each is not None]
    per_s = sum(known) / width if known and len(known) == len(samples) else None
    return Rate(at, width, sum(done for _, done in steps) / width, per_s)


def _samples(step: Moment) -> float | None:
    """Samples that all workers together used in one step."""
    told = number(values(step.record).get("samples"))
    if told is not None:
        return told
    batch, size = number(values(step.record).get("batch_size")), whole(step.record.get("size"))
    return None if batch is None or size is None else batch * size


def _steps_done(steps: Sequence[Moment]) -> list[int]:
    """How many steps each line but the first stands for: those since the line before.

    Where the numbers go back or are missing (after a roll-back), as many as a line usually stands for.
    """
    numbers = [whole(step.record.get("step")) for step in steps]
    ahead = [
        None if before is None or after is None or after <= before else after - before
        for before, after in itertools.pairwise(numbers)
    ]
    usual = int(statistics.median([n for n in ahead if n is not None] or [1]))
    return [usual if n is None else n for n in ahead]
