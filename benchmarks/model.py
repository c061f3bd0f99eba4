"""The values that are measured, and calculations with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar

T = TypeVar("T")

Side = Literal["stock", "ours"]
SIDES: Final[tuple[Side, ...]] = ("stock", "ours")

Statistic = Literal["median", "p99", "maximum"]
Unit = Literal["s", "MB", "%", "% of a core", "attempts", "samples/s", "steps", "hosts"]


class BenchmarkError(Exception):
    """A repetition that cannot be measured. Its text is the reason in the report."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds (or the unit of the figure). ``at_least``: this is only a lower bound, because the deadline came
    first."""

    seconds: float
    at_least: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: a statistic of a quantity.

    ``bar_s``: the highest value for ours. ``bar_ratio``: the highest ratio of ours to stock. ``bar_floor``: the highest
    ratio of ours to the same statistic of ``floor``, another quantity of ours in the same run. ``slack_s``: a time of
    ours that is at most so many seconds above stock's also meets ``bar_ratio``, because a ratio of two short times
    means little. ``unit``: "s", or the unit of a quantity that is not a time.
    """

    quantity: str
    statistic: Statistic = "median"
    bar_s: float | None = None
    bar_ratio: float | None = None
    floor: str | None = None
    bar_floor: float | None = None
    slack_s: float = 0.0
    unit: Unit = "s"
    sides: tuple[Side, ...] | None = None
    """The sides that have it; None: all sides of the case."""

    @property
    def has_bar(self) -> bool:
        return (self.bar_s, self.bar_ratio, self.bar_floor) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Trial:
    """One repetition: its side, its number (from 0), a folder of its own, and whether the run is a quick one."""

    side: Side
    number: int
    folder: Path
    quick: bool = False

    def pick(self, full: T, quick: T) -> T:
        """Return ``quick`` in a quick run, else ``full``."""
        return quick if self.quick else full


Values = Mapping[str, Sequence[Timing]]
"""Measured timings by quantity."""


def _nothing_missing() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement that is the same on both sides.

    ``measure`` raises :class:`BenchmarkError` if a repetition failed. ``repeats``: the default for each side.
    ``sides``: those that can be measured. ``missing``: returns what this machine lacks, and how to get it, or None.
    ``named_only``: it takes so long that it is measured only if it is named.
    """

    name: str
    about: str
    figures: tuple[Figure, ...]
    measure: Callable[[Trial], Values]
    repeats: int = 5
    sides: tuple[Side, ...] = SIDES
    missing: Callable[[], str | None] = _nothing_missing
    named_only: bool = False


@dataclass(frozen=True, slots=True)
class Repetition:
    """A repetition: its measurements, or the reason of its failure."""

    case: str
    side: Side
    number: int
    values: Values = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """One side of one figure. ``value``: None if nothing was measured."""

    value: Timing | None
    low: Timing | None
    high: Timing | None
    count: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    case: str
    figure: Figure
    ours: Summary
    stock: Summary
    floor: Summary | None = None
    """The other quantity with which ours is compared."""
    sides: tuple[Side, ...] = SIDES
    """The sides that can be measured."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours divided by stock. ``bound``: "<" or ">" if a deadline hides the true value."""

    value: float
    bound: Literal["", "<", ">"] = ""


def statistic(kind: Statistic, values: Sequence[Timing]) -> Timing | None:
    """Return the statistic ``kind`` of ``values``; None if there are none. A bound stays a bound."""
    ordered = sorted(values, key=lambda timing: (timing.seconds, timing.at_least))
    if not ordered:
        return None
    if kind == "median":
        return _median(ordered)
    share = 0.99 if kind == "p99" else 1.0
    return ordered[math.ceil(share * len(ordered)) - 1]


def _median(ordered: Sequence[Timing]) -> Timing:
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return Timing((low.seconds + high.seconds) / 2, low.at_least or high.at_least)


def summary(kind: Statistic, values: Sequence[Timing]) -> Summary:
    """Return the statistic ``kind`` of ``values`` with their spread."""
    ordered = sorted(values, key=lambda timing: (timing.seconds, timing.at_least))
    ends = (ordered[0], ordered[-1]) if ordered else (None, None)
    return Summary(statistic(kind, values), ends[0], ends[1], len(ordered))


def ratio(ours: Timing | None, stock: Timing | None) -> Ratio | None:
    """Return ours divided by stock; None if there is no ratio."""
    if ours is None or stock is None or stock.seconds <= 0 or (ours.at_least and stock.at_least):
        return None
    value = ours.seconds / stock.seconds
    if stock.at_least:
        return Ratio(value, "<")
    return Ratio(value, ">" if ours.at_least else "")


def meets_bar(row: Row) -> bool | None:
    """Whether ours meets every bar of its figure; None without a bar or without a measurement."""
    figure, ours = row.figure, row.ours.value
    if ours is None or not figure.has_bar:
        return None
    results = [figure.bar_s is None or (not ours.at_least and ours.seconds <= figure.bar_s)]
    against = ((figure.bar_ratio, row.stock), (figure.bar_floor, row.floor))
    for bar, other in against:
        if bar is not None:
            compared = ratio(ours, other.value if other is not None else None)
            if compared is None:
                return None
            near = other is row.stock and _within(figure.slack_s, ours, row.stock.value)
            results.append(near or (compared.bound != ">" and compared.value <= bar))
    return all(results)


def _within(slack_s: float, ours: Timing, stock: Timing | None) -> bool:
    """Whether ours takes at most ``slack_s`` longer than stock."""
    return slack_s > 0 and stock is not None and not ours.at_least and ours.seconds <= stock.seconds + slack_s


def rows(case: Case, repetitions: Sequence[Repetition]) -> list[Row]:
    """Return the case's lines of the table."""

    def side(figure: Figure, which: Side) -> Summary:
        return summary(figure.statistic, measured(figure.quantity, which))

    def measured(quantity: str, which: Side) -> list[Timing]:
        own = [r for r in repetitions if r.case == case.name and r.side == which]
        return [timing for r in own for timing in r.values.get(quantity, ())]

    def floor(figure: Figure) -> Summary | None:
        return None if figure.floor is None else summary(figure.statistic, measured(figure.floor, "ours"))

    return [
        Row(
            case.name,
            figure,
            side(figure, "ours"),
            stock=side(figure, "stock"),
            floor=floor(figure),
            sides=figure.sides or case.sides,
        )
        for figure in case.figures
    ]
