"""The benchmarks' report as text."""

from __future__ import annotations

import pytest

from benchmarks import table
from benchmarks.machine import Machine
from benchmarks.model import Case, Figure, Ratio, Repetition, Row, Summary, Timing

MACHINE = Machine("Some CPU", 2, "Linux 6.1", "3.11.7", "2.13.0", "0.28.1", "0.1.0", (0.5, 0.25, 0.125))


def one(seconds: float, *, at_least: bool = False) -> Summary:
    timing = Timing(seconds, at_least)
    return Summary(timing, timing, timing, 1)


@pytest.mark.parametrize(
    ("timing", "text"),
    [
        (Timing(0.0014), "1.4 ms"),
        (Timing(0.0999), "99.9 ms"),
        (Timing(0.3124), "312 ms"),
        (Timing(0.9996), "1.00 s"),
        (Timing(2.314), "2.31 s"),
        (Timing(30.68), "30.7 s"),
        (Timing(60.0, at_least=True), "> 60.0 s"),
    ],
)
def test_times_have_three_digits_and_say_when_they_are_a_bound(timing: Timing, text: str) -> None:
    assert table.time_text(timing) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(Ratio(0.5), "0.50"), (Ratio(0.0114), "0.011"), (Ratio(0.05, "<"), "< 0.050"), (None, "?")],
)
def test_ratios_are_short_and_say_when_they_are_a_bound(value: Ratio | None, text: str) -> None:
    assert table.ratio_text(value) == text


def test_every_row_stands_under_the_header_in_columns_that_line_up() -> None:
    rows = [
        Row("growth-stall", Figure("pause"), ours=one(0.3), stock=one(3.0)),
        Row("kill", Figure("kill to next step", "maximum"), ours=one(0.2), stock=one(60.0, at_least=True)),
    ]
    lines = table.table(rows).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == list(table.HEADER)
    assert cells[2] == [
        "growth-stall",
        "pause, median",
        "0.10",
        "300 ms (300 ms to 300 ms, 1)",
        "3.00 s (3.00 s to 3.00 s, 1)",
        "",
    ]
    assert cells[3][2:5] == ["< 0.003", "200 ms", "> 60.0 s"]


@pytest.mark.parametrize(
    ("ours", "text"),
    [(one(0.01), "at most 50.0 ms: kept"), (one(0.06), "at most 50.0 ms: MISSED")],
)
def test_a_bar_stands_beside_whether_it_was_kept(ours: Summary, text: str) -> None:
    assert table.bar_text(Row("c", Figure("q", bar_s=0.05), ours=ours, stock=one(1.0))) == text


def test_a_side_without_measurements_says_so_and_so_does_its_bar() -> None:
    row = Row("c", Figure("q", bar_ratio=0.5), ours=Summary(None, None, None, 0), stock=one(1.0))
    line = table.table([row]).splitlines()[-1]
    assert "no figure" in line
    assert "at most 0.5 × stock: not measured" in line


def test_failed_repetitions_are_told_with_their_reasons() -> None:
    done = [Repetition("kill", "stock", 0), Repetition("kill", "stock", 1, failure="the job ended")]
    report = table.report(MACHINE, [], repetitions=done, left_out={})
    assert "Failed repetitions: 1 of 2" in report
    assert "- kill, stock, repetition 2: the job ended" in report


def test_a_report_without_failures_speaks_of_none_and_names_machine_and_versions() -> None:
    report = table.report(MACHINE, [], repetitions=[Repetition("kill", "stock", 0)], left_out={})
    assert "Failed" not in report
    assert "Some CPU, 2 cores, Linux 6.1; load average before the run: 0.50 0.25 0.12." in report
    assert "Python 3.11.7, torch 2.13.0, Horovod 0.28.1, hvd-elastic-ext 0.1.0." in report


def test_a_case_that_this_machine_cannot_do_is_named_with_the_reason() -> None:
    report = table.report(MACHINE, [], repetitions=[], left_out={"link-cut": "needs root"})
    assert "Not run: link-cut: needs root" in report


def test_a_side_that_cannot_be_measured_has_a_dash_and_the_bar_is_judged_without_it() -> None:
    nothing = Summary(None, None, None, 0)
    row = Row("c", Figure("q", bar_s=2.0, unit="% of a core"), ours=one(1.5), stock=nothing, sides=("ours",))
    cells = [cell.strip() for cell in table.table([row]).splitlines()[-1].strip("|").split("|")]
    assert cells[2:5] == ["–", "1.5 % of a core (1.5 % of a core to 1.5 % of a core, 1)", "–"]
    assert cells[5] == "at most 2.0 % of a core: kept"


def test_a_bar_with_slack_says_both_ways_of_keeping_it() -> None:
    row = Row("c", Figure("q", bar_ratio=1.2, slack_s=0.05), ours=one(0.12), stock=one(0.08))
    assert table.bar_text(row) == "at most 1.2 × stock or stock + 50.0 ms: kept"


def test_the_page_of_a_run_counts_the_bars_names_the_missed_and_has_a_section_for_each_case() -> None:
    nothing = Summary(None, None, None, 0)
    rows = [
        Row("kill", Figure("kill to next step", bar_ratio=1.0), ours=one(0.1), stock=one(1.0)),
        Row("idle", Figure("cpu", bar_s=1.0, unit="%"), ours=one(2.0), stock=nothing, sides=("ours",)),
    ]
    cases = [
        Case("kill", "a worker is killed", (rows[0].figure,), lambda trial: {}),
        Case("idle", "nothing happens", (rows[1].figure,), lambda trial: {}, sides=("ours",)),
    ]
    page = table.page(
        MACHINE, rows, cases=cases, repetitions=[], left_out={}, command="scripts/bench kill idle", began="2026-01-02"
    )
    assert "`scripts/bench kill idle` wrote this page on 2026-01-02." in page
    assert "Bars: 1 kept, 1 missed, 0 not measured.\n- missed: idle: cpu, median" in page
    sections = page.split("\n## ")
    assert sections[1].startswith(
        "kill\n\nA worker is killed.\n\n| what | ours / stock | ours | stock | bar for ours |"
    )
    assert sections[2].startswith("idle\n\nNothing happens.\n\n| what | ours | bar for ours |")
