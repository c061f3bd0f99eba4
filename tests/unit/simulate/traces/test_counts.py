"""Traces that tell only how many hosts there are."""

from __future__ import annotations

import pytest

from hvd_elastic_ext.core.errors import UsageError
from hvd_elastic_ext.simulate.traces.counts import is_counts, parsed
from hvd_elastic_ext.simulate.traces.published import Assumed

TEXT = "0,0\n100,0\n100,4\n200,4\n200,1\n300,1\n300,3\n"


def test_a_file_with_two_numbers_a_line_is_one_of_counts() -> None:
    assert is_counts(TEXT)
    assert is_counts("# mine\ntime,count\n0,4\n")
    assert not is_counts("time,host,event\n0,a,up\n")


def test_so_many_hosts_are_there_at_each_time_from_the_first_one_on() -> None:
    trace = parsed(TEXT, where="t", assumed=Assumed(notice=30.0, untold=0.5, slots=2)).trace(0)
    there, seen = 0, {}
    for row in trace.rows:
        there += 1 if row.event == "up" else -1
        seen[row.at] = there
    assert seen == {0.0: 4, 100.0: 1, 200.0: 3}
    assert trace.slots == dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), 2)
    assert {row.notice for row in trace.rows if row.event == "down"} <= {0.0, 30.0}


def test_the_seed_decides_which_host_goes() -> None:
    counts = parsed(TEXT, where="t")
    assert counts.trace(1) == counts.trace(1)
    assert len({tuple(row.host for row in counts.trace(seed).rows) for seed in range(10)}) > 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0,4\n5,many\n", "t:2: '5,many' is not a time and a count"),
        ("0,4\n5,3,2\n", "t:2"),
        ("5,4\n2,3\n", "t:2: time 2 is before that"),
        ("0.000,4\n0.500,3\n", "are its times hours"),
        ("0,0\n", "has no host"),
    ],
)
def test_a_bad_row_is_one_line_that_names_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parsed(text, where="t")


def test_times_without_a_unit_are_of_the_one_that_is_assumed() -> None:
    levels = parsed("0.000,4\n1.500,0\n", where="t", assumed=Assumed(unit="h"))
    assert levels.trace(0).ends == 5400.0


def test_a_part_of_a_trace_begins_with_the_hosts_that_are_there_then() -> None:
    trace = parsed("0,4\n100000,2\n200000,5\n", where="t", assumed=Assumed(after=50_000.0, days=1.0)).trace(0)
    assert [(row.at, row.event) for row in trace.rows] == [(0.0, "up")] * 4 + [(50_000.0, "down")] * 2
    assert trace.ends == 86_400.0
