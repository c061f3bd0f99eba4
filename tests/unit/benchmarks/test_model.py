"""Statistics, ratios and bars of the benchmarks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.model import (
    BenchmarkError,
    Case,
    Figure,
    Ratio,
    Repetition,
    Row,
    Statistic,
    Summary,
    Timing,
    meets_bar,
    ratio,
    rows,
    statistic,
    summary,
)

TIMINGS = st.lists(st.floats(0.0, 1e6).map(Timing), min_size=1, max_size=40)


def timings(*seconds: float) -> list[Timing]:
    return [Timing(value) for value in seconds]


def row(figure: Figure, *, ours: Timing | None, stock: Timing | None = None) -> Row:
    return Row("case", figure, ours=Summary(ours, ours, ours, 1), stock=Summary(stock, stock, stock, 1))


def unused(*_: object) -> dict[str, list[Timing]]:
    raise BenchmarkError("never asked")


DEADLINE = Timing(60.0, at_least=True)


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        pytest.param("median", timings(3.0, 1.0, 9.0), Timing(3.0), id="an odd number"),
        pytest.param("median", timings(4.0, 1.0, 2.0, 9.0), Timing(3.0), id="an even number"),
        pytest.param("median", [Timing(1.0), DEADLINE], Timing(30.5, at_least=True), id="a median with a deadline"),
        pytest.param("median", [*timings(1.0, 2.0), DEADLINE], Timing(2.0), id="a deadline beyond the median"),
        pytest.param("p99", timings(*range(30)), Timing(29), id="p99 of thirty"),
        pytest.param("p99", timings(*range(200)), Timing(197), id="p99 of two hundred"),
        pytest.param("maximum", [DEADLINE, Timing(60.0)], DEADLINE, id="a deadline is the maximum"),
        pytest.param("median", [], None, id="no measurement"),
    ],
)
def test_a_statistic_of_timings_is_the_one_that_was_asked_for(
    kind: Statistic, values: list[Timing], expected: Timing | None
) -> None:
    assert statistic(kind, values) == expected


@given(TIMINGS)
def test_every_statistic_lies_within_the_spread(values: list[Timing]) -> None:
    found = summary("median", values)
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low.seconds <= found.value.seconds <= found.high.seconds
    assert found.count == len(values)
    assert statistic("p99", values) in values
    assert statistic("maximum", values) == found.high


@pytest.mark.parametrize(
    ("ours", "stock", "expected"),
    [
        (Timing(1.0), Timing(4.0), Ratio(0.25)),
        (Timing(3.0), Timing(60.0, at_least=True), Ratio(0.05, "<")),
        (Timing(60.0, at_least=True), Timing(30.0), Ratio(2.0, ">")),
        (Timing(60.0, at_least=True), Timing(60.0, at_least=True), None),
        (None, Timing(1.0), None),
        (Timing(1.0), None, None),
        (Timing(1.0), Timing(0.0), None),
    ],
)
def test_a_ratio_is_ours_over_stock_and_says_when_it_is_a_bound(
    ours: Timing | None, stock: Timing | None, expected: Ratio | None
) -> None:
    assert ratio(ours, stock) == expected


@pytest.mark.parametrize(
    ("ours", "kept"),
    [(Timing(0.05), True), (Timing(0.051), False), (Timing(0.01, at_least=True), False), (None, None)],
)
def test_a_bar_in_seconds_is_kept_only_by_what_is_known_to_be_within_it(ours: Timing | None, kept: bool | None) -> None:
    assert meets_bar(row(Figure("q", bar_s=0.05), ours=ours)) is kept


@pytest.mark.parametrize(
    ("stock", "kept"),
    [(Timing(4.0), True), (Timing(1.5), False), (Timing(4.0, at_least=True), True), (None, None)],
)
def test_a_bar_against_stock_needs_stock_to_be_measured(stock: Timing | None, kept: bool | None) -> None:
    assert meets_bar(row(Figure("q", bar_ratio=0.5), ours=Timing(1.0), stock=stock)) is kept


@pytest.mark.parametrize(
    ("ours", "stock", "kept"),
    [
        (Timing(0.12), Timing(0.08), True),  # more than 1.2 times, but only 40 ms more
        (Timing(0.14), Timing(0.08), False),
        (Timing(11.0), Timing(10.0), True),  # a second more, but not 1.2 times
        (Timing(60.0, at_least=True), Timing(59.99), False),
        (Timing(0.1), None, None),
    ],
)
def test_slack_lets_short_times_be_a_little_longer_than_stocks(ours: Timing, stock: Timing | None, kept: bool) -> None:
    assert meets_bar(row(Figure("q", bar_ratio=1.2, slack_s=0.05), ours=ours, stock=stock)) is kept


def test_a_figure_without_a_bar_is_neither_kept_nor_missed() -> None:
    assert meets_bar(row(Figure("q"), ours=Timing(1.0), stock=Timing(2.0))) is None


def test_rows_put_each_sides_own_repetitions_together_and_leave_failures_out() -> None:
    case = Case("a", "about", (Figure("q"), Figure("q", "maximum")), measure=unused)
    done = [
        Repetition("a", "stock", 0, {"q": timings(4.0)}),
        Repetition("a", "ours", 0, {"q": timings(1.0, 2.0)}),
        Repetition("a", "ours", 1, failure="it ended"),
        Repetition("a", "ours", 2, {"q": timings(3.0), "other": timings(99.0)}),
        Repetition("b", "ours", 0, {"q": timings(77.0)}),
    ]
    median, maximum = rows(case, done)
    assert (median.ours.value, median.ours.count) == (Timing(2.0), 3)
    assert (maximum.ours.value, maximum.stock.value) == (Timing(3.0), Timing(4.0))
