"""World size, throughput and loss as functions of time."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
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
    """The size of every world formed; 0 when a job began or ended."""
    sizes: list[World] = []
    for moment in of(moments, "started", "resized", "finished"):
        size = whole(moment.record.get("size")) if moment.record.event == "resized" else 0
        if size is not None:
            sizes.append(World(moment.at, size))
    return tuple(sizes)


def losses(moments: Sequence[Moment]) -> tuple[Loss, ...]:
    """Every loss that a worker reported and that is a finite number."""
    return tuple(
        Loss(moment.at, whole(moment.record.get("step")), loss)
        for moment in of(moments, "stepped")
        if (loss := number(values(moment.record).get("loss"))) is not None
    )


def throughput(moments: Sequence[Moment], *, typical: float) -> tuple[Rate, ...]:
    """Steps (and samples) per second in equal bins from the first step to the last; empty below two steps.

    Where only every n-th step was journalled, each line counts as n steps.
    """
    steps = of(moments, "stepped")
    if len(steps) < 2 or steps[-1].at <= steps[0].at:
        return ()
    begin, span = steps[0].at, steps[-1].at - steps[0].at
    wanted = max(SHORTEST_BIN_S, STEPS_A_BIN * typical, span / MOST_BINS)
    count = max(1, int(span / wanted))
    width = span / count
    bins: list[list[Moment]] = [[] for _ in range(count)]
    # The first step ended at the very edge: its work lies before the first bin.
    for step in steps[1:]:
        bins[min(count - 1, int((step.at - begin) / width))].append(step)
    stride = _stride(steps)
    return tuple(_rate(inside, begin + i * width, width=width, stride=stride) for i, inside in enumerate(bins))


def _rate(steps: Sequence[Moment], at: float, *, width: float, stride: int) -> Rate:
    samples = [_samples(step) for step in steps]
    known = [n for n in samples if n is not None]
    per_s = stride * sum(known) / width if len(known) == len(samples) and known else None
    return Rate(at, width, stride * len(steps) / width, per_s)


def _samples(step: Moment) -> float | None:
    """Samples that all workers together used in one step."""
    told = number(values(step.record).get("samples"))
    if told is not None:
        return told
    batch, size = number(values(step.record).get("batch_size")), whole(step.record.get("size"))
    return None if batch is None or size is None else batch * size


def _stride(steps: Sequence[Moment]) -> int:
    """How many steps one line stands for."""
    numbers = [n for step in steps if (n := whole(step.record.get("step"))) is not None]
    ahead = [after - before for before, after in itertools.pairwise(numbers) if after > before]
    return int(statistics.median(ahead)) if ahead else 1
