"""Rows that change are shown, and no others."""

from __future__ import annotations

from hvd_elastic_ext.jobs.cli.get import Changes

HEADINGS = ("POD", "PHASE", "AGE")


def test_only_rows_that_change_in_more_than_their_age_are_shown_again() -> None:
    seen = Changes()
    first = list(seen.lines([(HEADINGS, [("pod-long", "Running", "1s"), ("b", "Pending", "1s")])]))
    assert first == ["POD       PHASE    AGE\n", "pod-long  Running  1s\n", "b         Pending  1s\n"]
    assert list(seen.lines([(HEADINGS, [("pod-long", "Running", "3s"), ("b", "Pending", "3s")])])) == []
    assert list(seen.lines([(HEADINGS, [("pod-long", "Running", "5s"), ("b", "Running", "5s")])])) == [
        "b         Running  5s\n"
    ]


def test_a_row_that_goes_is_shown_once_as_gone_and_may_come_back() -> None:
    seen = Changes()
    row = ("a", "Running", "1s")
    assert len(list(seen.lines([(HEADINGS, [row])]))) == 2
    assert list(seen.lines([(HEADINGS, [])])) == ["a    Gone     1s\n"]
    assert list(seen.lines([(HEADINGS, [])])) == []
    assert list(seen.lines([(HEADINGS, [row])])) == ["a    Running  1s\n"]


def test_jobs_of_one_name_in_two_namespaces_are_two() -> None:
    seen = Changes()
    headings = ("NAMESPACE", "NAME", "STATE")
    assert len(list(seen.lines([(headings, [("a", "x", "Pending"), ("b", "x", "Pending")])]))) == 3
    assert list(seen.lines([(headings, [("a", "x", "Pending"), ("b", "x", "Running")])])) == [
        "b          x     Running\n"
    ]
