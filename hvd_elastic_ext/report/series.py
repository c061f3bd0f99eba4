"""World size, throughput and loss as functions of time.

Records of steps may arrive late and together, after a launcher was away: the steps are then spread over that time.
Throughput is a mean over bins that hold several steps each, so that it does not flicker.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from hvd_elastic_ext.report.timeline import Moment, names, number, select, values, whole

MOST_BINS: Final = 120
SHORTEST_BIN_S: Final = 0.5
STEPS_A_BIN: Final = 5
"""Bins hold at least this many typical steps, so that throughput does not flicker."""
SHORTEST_STEP_S: Final = 1e-6
AT_ONCE_S: Final = 0.1
"""Records within this time arrived together."""
FEWEST_STEPS, FIRST_STEPS = 3, 20
"""How many steps decide the speed of a size, at least and at most. Only the first ones count: starting newcomers
may disturb later ones.
"""


@dataclass(frozen=True, slots=True)
class World:
    """The size of the world from a time on."""

    at: float
    """Seconds since the start."""
    size: int
    """Workers; 0 before and after the job."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Mean throughput in a bin of time."""

    at: float
    """When it begins: seconds since the start."""
    width: float
    """Its length in seconds."""
    steps_per_s: float
    samples_per_s: float | None
    """None if the journal has no samples."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of training with this many hosts, by the median of its steps."""

    hosts: int
    steps_per_s: float
    samples_per_s: float | None


@dataclass(frozen=True, slots=True)
class Loss:
    """Training loss after a step."""

    at: float
    step: int | None
    loss: float


def world_sizes(moments: Sequence[Moment]) -> tuple[World, ...]:
    """The size of every world; 0 when a job begins, sleeps or ends.

    If steps follow the start of a launcher before a new world does, the launcher has found a running world.
    """
    sizes: list[World] = []
    selected = select(moments, "started", "resized", "slept", "finished", "stepped")
    for moment, following in zip_longest(selected, selected[1:]):
        found = sizes and following is not None and following.record.event == "stepped"
        if moment.record.event == "stepped" or (moment.record.event == "started" and found):
            continue
        size = whole(moment.record.get("size")) if moment.record.event == "resized" else 0
        if size is not None:
            sizes.append(World(moment.at, size))
    return tuple(sizes)


def losses(moments: Sequence[Moment]) -> tuple[Loss, ...]:
    """Every finite loss that a worker reported.

    A step's record has the values at the time of the optimizer step, so the first one has no loss yet.
    """
    return tuple(
        Loss(moment.at, whole(moment.record.get("step")), loss)
        for moment in select(moments, "stepped")
        if (loss := number(values(moment.record).get("loss"))) is not None and moment.record.get("step") != 1
    )


def throughput(moments: Sequence[Moment], *, typical: float, most_bins: int = MOST_BINS) -> tuple[Rate, ...]:
    """Steps (and samples) per second in equal bins from the first step to the last; empty below two steps.

    If only some steps are journalled, each record counts for the steps since the one before.
    """
    steps = select(moments, "stepped")
    if len(steps) < 2 or steps[-1].at <= steps[0].at:
        return ()
    begin, span = steps[0].at, steps[-1].at - steps[0].at
    wanted = max(SHORTEST_BIN_S, STEPS_A_BIN * typical, span / most_bins)
    count = max(1, int(span / wanted))
    width = span / count
    bins: list[list[tuple[Moment, float]]] = [[] for _ in range(count)]
    late = _reported_late(moments)
    # The first step ended at the edge: its work lies before the first bin.
    for step, done in zip(steps[1:], _steps_done(steps), strict=True):
        came, reported_at = late.get(step.at, (step.at, step.at))
        first, last = (min(count - 1, int((at - begin) / width)) for at in (came, reported_at))
        for place in range(first, last + 1):
            inside = min(reported_at, begin + (place + 1) * width) - max(came, begin + place * width)
            bins[place].append((step, done if first == last else done * inside / (reported_at - came)))
    return tuple(_rate(inside, begin + i * width, width=width) for i, inside in enumerate(bins))


def _reported_late(moments: Sequence[Moment]) -> dict[float, tuple[float, float]]:
    """Steps made while no launcher ran: by the time of their report, the begin and end of that time.

    The next launcher of the same world gets the report of all of them at once.
    """
    absences: dict[float, tuple[float, float]] = {}
    before: Moment | None = None
    away, reported_at = False, -math.inf
    for moment in select(moments, "started", "resized", "stepped"):
        if moment.record.event != "stepped":
            away = moment.record.event == "started"
            continue
        if before is not None and before.clock == moment.clock:
            if away:
                came, reported_at = before.at, moment.at
            if moment.at <= reported_at + AT_ONCE_S:
                absences[moment.at] = came, moment.at
        before, away = moment, False
    return absences


def speeds(moments: Sequence[Moment]) -> tuple[Speed, ...]:
    """By number of hosts, from the first steps with so many."""
    hosts: dict[int, int] = {}
    newest: dict[int, Moment] = {}
    steps_of: dict[int, list[tuple[float, float | None]]] = {}
    for moment in select(moments, "resized", "stepped"):
        generation = moment.record.generation
        if moment.record.event == "resized":
            hosts[generation] = host_count(moment.record.get("hosts"))
            newest.pop(generation, None)
            continue
        before, newest[generation] = newest.get(generation), moment
        if before is None or not hosts.get(generation):
            continue
        done = (whole(moment.record.get("step")) or 0) - (whole(before.record.get("step")) or 0)
        if done > 0 and moment.at - before.at >= done * SHORTEST_STEP_S and moment.clock == before.clock:
            steps_of.setdefault(hosts[generation], []).append(((moment.at - before.at) / done, _samples(moment)))
    return tuple(_speed(size, steps_of[size]) for size in sorted(steps_of) if len(steps_of[size]) >= FEWEST_STEPS)


def host_count(hosts: object) -> int:
    """The number of hosts of a world, by its ``hosts``: names, or only their number."""
    return len(set(names(hosts))) or whole(hosts) or 0


def _speed(hosts: int, steps: Sequence[tuple[float, float | None]]) -> Speed:
    steps = steps[:FIRST_STEPS]
    per_s = 1.0 / statistics.median(seconds for seconds, _ in steps)
    samples = [each for _, each in steps if each is not None]
    return Speed(hosts, per_s, per_s * statistics.median(samples) if len(samples) == len(steps) else None)


def _rate(steps: Sequence[tuple[Moment, float]], at: float, *, width: float) -> Rate:
    samples = [(_samples(step), done) for step, done in steps]
    known = [each * done for each, done in samples if each is not None]
    per_s = sum(known) / width if known and len(known) == len(samples) else None
    return Rate(at, width, sum(done for _, done in steps) / width, per_s)


def _samples(step: Moment) -> float | None:
    """Samples of all workers in one step."""
    samples = number(values(step.record).get("samples"))
    if samples is not None:
        return samples
    batch, size = number(values(step.record).get("batch_size")), whole(step.record.get("size"))
    return None if batch is None or size is None else batch * size


def _steps_done(steps: Sequence[Moment]) -> list[int]:
    """Return the number of steps that each record, except the first, stands for.

    If the numbers decrease or are missing (after a roll-back), it is the usual number.
    """
    numbers = [whole(step.record.get("step")) for step in steps]
    ahead = [
        None if before is None or after is None or after <= before else after - before
        for before, after in itertools.pairwise(numbers)
    ]
    usual = int(statistics.median([n for n in ahead if n is not None] or [1]))
    return [usual if n is None else n for n in ahead]
