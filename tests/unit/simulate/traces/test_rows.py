"""Traces as files: what is read, and what is refused, with the line and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.command import SAMPLE
from hvd_elastic_ext.simulate.traces import rows, synthetic
from hvd_elastic_ext.simulate.traces.rows import Row, parsed, written

HEAD = "time,host,event,notice,slots\n"


def test_rows_are_read_with_their_units_and_comments_are_passed_over() -> None:
    trace = parsed(f"# mine\n{HEAD}0,a,up,,4\n\n1.5h,a,down,2m,\n", where="t")
    assert trace.rows == (Row(0.0, "a", "up", slots=4), Row(5400.0, "a", "down", 120.0))
    assert (trace.ends, trace.slots) == (5400.0, {"a": 4})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t: is empty"),
        ("when,host,event\n", "t:1: column 'when' is unknown"),
        ("time,host\n", "t:1: column 'event' is missing"),
        (HEAD, "t: has no row"),
        (HEAD + "soon,a,up\n", "t:2: time 'soon' is not a time"),
        (HEAD + "0,a b,up\n", "t:2: host name 'a b'"),
        (HEAD + "0,a,gone\n", "t:2: event 'gone' is not one of up, down, lost, crash"),
        (HEAD + "0,a,up,5\n", "t:2: notice of a host that is up"),
        (HEAD + "0,a,up,,0\n", "t:2: slots '0'"),
        (HEAD + "0,a,up,,1,2\n", "t:2: more values than columns"),
        (HEAD + "0,a,up\n\n5,a,up\n", "t:4: a is up already"),
        (HEAD + "0,a,down\n", "t:2: a is not up"),
        (HEAD + "5,a,up\n2,b,up\n", "t:3: time 2 is before 5"),
    ],
)
def test_a_bad_row_is_one_line_that_names_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parsed(text, where="t")
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        rows.read(tmp_path / "none.csv")


def test_a_trace_that_lasts_no_time_is_one_line_that_says_what_to_add() -> None:
    with pytest.raises(UsageError, match="t: all its rows are at time 0, so it has no duration; add a row at its end"):
        parsed("time,host,event\n0,a,up\n", where="t")


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0.0, 1.0))
def test_a_trace_is_read_as_it_was_written(seed: int, hosts: int, untold: float) -> None:
    made = synthetic.Synthetic(hosts=hosts, days=0.5, mtbf=7200.0, untold=untold, notice=30.0, crash=9000.0).trace(seed)
    assert parsed(written(made.rows), where="t").rows == made.rows


def test_the_sample_is_a_trace() -> None:
    assert len(rows.read(SAMPLE).slots) == 8
